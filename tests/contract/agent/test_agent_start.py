"""A node before it has a job: without a key, an engine, a server or work, or told to leave."""

import httpx
import pytest
from tests.contract.agent.conftest import NodeFactory
from tests.contract.agent.fake_node_api import AWAY, FakeNodeApi, lease, problem

from giornata.agent.claiming import ExitCode
from giornata.agent.settings import faults_of_kinds
from giornata.domain.errors import InvalidInput


def test_a_key_that_is_refused_ends_the_node_with_an_error(api: FakeNodeApi, node: NodeFactory) -> None:
    api.always["claim"] = problem(401, "unauthenticated", "unknown key")
    assert node().run() == ExitCode.UNUSABLE
    assert len(api.bodies("claim")) == 3


def test_a_claim_that_is_refused_once_is_sent_again(api: FakeNodeApi, node: NodeFactory) -> None:
    """It may have been damaged on its way."""
    api.answers["claim"] = [problem(400, "bad-request", "no JSON")] * 2
    api.leases = [lease()]
    assert node().run() == ExitCode.DONE
    assert len({claim["request_id"] for claim in api.bodies("claim")[:3]}) == 1
    assert len(api.bodies("complete")) == 1


def test_an_engine_that_never_starts_ends_the_node_with_an_error(api: FakeNodeApi, node: NodeFactory) -> None:
    made = node(script="sys.exit('no GPU')")
    assert made.run() == ExitCode.UNUSABLE
    assert len(made.naps) == 2  # it tried three times
    assert api.calls == []


def test_a_server_that_never_answers_is_given_up_if_the_settings_say_so(api: FakeNodeApi, node: NodeFactory) -> None:
    api.always["claim"] = AWAY
    assert node(give_up_after_s=0.0).run() == ExitCode.SERVER_GONE


def test_a_server_without_work_is_not_asked_in_a_hot_loop(api: FakeNodeApi, node: NodeFactory) -> None:
    api.answers["claim"] = [lambda _: httpx.Response(200, json={"reason": "empty-queue"})] * 3
    made = node()
    assert made.run() == ExitCode.DONE
    assert [nap > 0.3 for nap in made.naps] == [True] * 3


def test_an_unusable_machine_id_is_named_before_anything_starts(api: FakeNodeApi, node: NodeFactory) -> None:
    made = node(machine_id="a machine")
    with pytest.raises(InvalidInput, match=r"machine_id"):
        made.run()
    assert made.agent.engines.current is None


def test_the_order_to_leave_before_the_engine_has_the_job_gives_it_back(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = [lease()]
    made = node()
    api.hooks["claim"] = made.shutdown.ask
    assert made.run() == ExitCode.DONE
    assert api.routes() == ["claim", "release"]
    assert api.bodies("release")[0]["reason"] == "preempted"


def test_orders_of_pictures_are_no_kinds_of_a_node_but_their_pictures_are() -> None:
    assert faults_of_kinds(("train", "generate", "preprocess", "canary"), {}) == []
    [fault] = faults_of_kinds(("grid",), {})
    assert "there are train, pretrain, generate, preprocess;" in fault.hint
