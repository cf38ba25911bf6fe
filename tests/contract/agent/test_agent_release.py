"""The server wants one job back: its attempt ends with a checkpoint, and the node and all others go on."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from tests.contract.agent.conftest import NodeFactory
from tests.contract.agent.fake_node_api import FakeNodeApi, lease
from tests.contract.agent.test_agent_together import granted, leases, of, together

from giornata.agent.attempt.commands import LEFT, RELEASED, ServerCommands, ShutdownSignal
from giornata.agent.claiming import ExitCode
from giornata.protocol.node.work import Order

ENDLESS = {"steps": 10**9, "every": 10**9, "step_s": 0.005}
SHORT = {"steps": 3, "every": 5}


def ordering(api: FakeNodeApi, order: Callable[[str, dict[str, Any]], str]) -> None:
    """Answer heartbeats by what `order` says of the token and the beat."""

    def answer(_: httpx.Request) -> httpx.Response:
        call = api.calls[-1]
        reply = {"lease_s": 20.0, "renew_every_s": 0.05, "mtbi_s": 1000.0, "order": order(call.bearer, call.body)}
        return httpx.Response(200, json=reply)

    api.always["heartbeat"] = answer


def after_a_step(token: str) -> Callable[[str, dict[str, Any]], str]:
    return lambda bearer, beat: "release" if bearer == token and beat["step"] > 0 else "continue"


def test_a_job_that_the_server_wants_back_comes_with_a_checkpoint_and_the_node_takes_another(
    api: FakeNodeApi, node: NodeFactory
) -> None:
    api.leases = [lease(spec=ENDLESS), lease(spec=SHORT, attempt_id="att_2", token="token-2", job_id="job_2")]
    ordering(api, after_a_step("token-1"))
    made = node()
    assert made.run() == ExitCode.DONE
    assert of(api, 1) == ["uploads", "checkpoints", "release"]
    assert of(api, 2) == ["uploads", "artifacts", "complete"]
    (body,) = api.bodies("release")
    assert body["reason"] == "released"
    assert body["step"] in api.checkpoints
    # The engine is the same, and the node did not pause as after a failure.
    pids = [claim["node"]["engine_pid"] for claim in api.bodies("claim")]
    assert len(set(pids)) == 1
    assert made.naps == []


def test_release_of_one_batch_member_leaves_other_running(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = leases({"when": 9, "do": "leave"}, {"when": 9, "do": "stay"})
    api.answers["claim"] = [granted(api), granted(api)]
    api.always["claim"] = lambda _: httpx.Response(200, json={"reason": "empty-queue"})
    working: set[str] = set()

    def order(bearer: str, beat: dict[str, Any]) -> str:
        if beat["step"] > 0:
            working.add(bearer)
        return "release" if bearer == "token-1" and len(working) == 2 else "continue"

    ordering(api, order)
    api.hooks["complete"] = lambda: api.always.pop("claim")
    assert together(node).run() == ExitCode.DONE
    assert of(api, 1) == ["uploads", "checkpoints", "release"]
    assert of(api, 2) == ["complete"]


def test_a_job_wanted_back_before_the_engine_has_it_is_given_back_at_once(
    api: FakeNodeApi, node: NodeFactory
) -> None:
    api.leases = [lease(spec=ENDLESS), lease(spec=SHORT, attempt_id="att_2", token="token-2", job_id="job_2")]
    ordering(api, lambda bearer, _: "release" if bearer == "token-1" else "continue")
    assert node().run() == ExitCode.DONE
    assert of(api, 1) == ["release"]
    assert of(api, 2) == ["uploads", "artifacts", "complete"]


def test_an_engine_that_does_not_obey_is_ended_and_the_next_job_gets_another(
    api: FakeNodeApi, node: NodeFactory
) -> None:
    api.leases = leases({"when": 9, "do": "deaf"}, {"when": 1, "do": "done"}, key=None)
    ordering(api, after_a_step("token-1"))
    assert together(node, places=1, release_s=0.3).run() == ExitCode.DONE
    assert of(api, 1) == ["release"]
    assert of(api, 2) == ["complete"]
    pids = [claim["node"]["engine_pid"] for claim in api.bodies("claim")]
    assert pids[0] != pids[1]


@pytest.fixture
def commands() -> ServerCommands:
    return ServerCommands(shutdown=ShutdownSignal(), monotonic_s=lambda: 100.0, grace_s=10.0, release_s=60.0)


def test_no_order_ends_nothing(commands: ServerCommands) -> None:
    commands.receive(Order.CONTINUE)
    assert commands.wanted() is None
    assert not commands.leave


def test_drain_order_overrides_release_and_is_not_undone_by_later_orders(commands: ServerCommands) -> None:
    commands.receive(Order.RELEASE)
    assert (commands.wanted(), commands.leave) == (RELEASED, False)
    assert commands.stop_by(RELEASED) == 160.0
    assert commands.news(RELEASED) is None  # it is being obeyed
    commands.receive(Order.DRAIN)
    commands.receive(Order.RELEASE)
    commands.receive(Order.CONTINUE)
    assert (commands.news(RELEASED), commands.leave) == (LEFT, True)
    assert commands.stop_by(LEFT) == 106.0
    assert commands.news(LEFT) is None
