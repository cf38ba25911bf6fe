"""A node and its jobs, end to end: a real engine process, a server steered by the test."""

import shutil
import time

import httpx
import pytest
from tests.contract.agent.conftest import NodeFactory
from tests.contract.agent.counting import ENDLESS, counted
from tests.contract.agent.fake_node_api import AWAY, LOST, FakeNodeApi, api_ok, cut, lease, problem

from giornata.agent.claiming import ExitCode
from giornata.domain.errors import InvalidInput
from giornata.domain.jobs.reasons import Reason


def test_a_job_is_done(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = [lease()]
    made = node()
    assert made.run() == ExitCode.DONE
    assert api.artifacts == {"count.txt": counted(20)}
    assert max(api.checkpoints) == 20
    [done] = api.bodies("complete")
    assert (done["step"], done["artifacts"]) == (20, ["count.txt"])
    assert {call.bearer for call in api.calls if call.route == "claim"} == {"node-key"}
    assert {call.bearer for call in api.calls if call.route != "claim"} == {"token-1"}
    assert made.left_behind() == []


def test_two_jobs_share_one_engine(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = [lease(), lease(attempt_id="att_2", token="token-2")]
    assert node().run() == ExitCode.DONE
    assert len(api.bodies("complete")) == 2
    pids = {body["node"]["engine_pid"] for body in api.bodies("claim")}
    assert len(pids) == 1
    assert None not in pids


def test_a_claim_whose_reply_was_lost_is_repeated_under_the_same_id(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = [lease()]
    api.answers["claim"] = [cut, AWAY]
    assert node().run() == ExitCode.DONE
    first, second, third, fourth = (body["request_id"] for body in api.bodies("claim"))
    assert first == second == third
    assert fourth != first
    assert api.artifacts == {"count.txt": counted(20)}


def test_a_lost_lease_ends_the_job_and_nothing_more_is_written(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = [lease(spec=ENDLESS)]
    api.answers["heartbeat"] = [api_ok, LOST]
    made = node()
    assert made.run() == ExitCode.DONE
    last = max(place for place, call in enumerate(api.calls) if call.route == "heartbeat")
    assert [call.route for call in api.calls[last + 1 :]] == ["claim"]
    assert api.routes() == ["claim", "claim"]
    assert made.left_behind() == []


def test_a_lease_lost_at_a_commit_ends_the_job(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = [lease(spec={"steps": 10**9, "every": 5, "step_s": 0.001})]
    api.always["checkpoints"] = LOST
    assert node().run() == ExitCode.DONE
    assert api.routes() == ["claim", "uploads", "checkpoints", "claim"]
    assert api.checkpoints == {}


def test_an_order_that_nobody_here_knows_renews_nothing(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = [lease(spec=ENDLESS, lease_s=0.5)]
    api.order = "dance"
    assert node().run() == ExitCode.DONE
    assert api.routes() == ["claim", "claim"]


def test_a_server_that_is_away_for_less_than_a_lease_costs_nothing(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = [lease()]
    api.answers["heartbeat"] = [AWAY, AWAY, AWAY]
    api.answers["uploads"] = [AWAY, cut]
    api.answers["checkpoints"] = [cut]
    api.answers["artifacts"] = [cut, AWAY]
    api.answers["complete"] = [AWAY, cut]
    assert node().run() == ExitCode.DONE
    assert api.artifacts == {"count.txt": counted(20)}
    assert len(api.bodies("complete")) == 3
    assert api.bodies("fail") == api.bodies("release") == []


def test_a_server_that_is_away_for_longer_than_a_lease_is_not_waited_for(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = [lease(spec=ENDLESS, lease_s=0.4)]
    api.always["heartbeat"] = AWAY
    made = node()
    assert made.run() == ExitCode.DONE
    assert api.routes() == ["claim", "claim"]
    assert made.left_behind() == []


def test_complete_is_never_turned_into_a_failure(api: FakeNodeApi, node: NodeFactory) -> None:
    """The lease is over, by a clock that leaps, when the server has not answered to it."""
    leaps: list[float] = []

    def away(request: httpx.Request) -> httpx.Response:
        leaps.append(1000.0)
        return AWAY(request)

    api.leases = [lease(lease_s=900.0)]
    api.always["heartbeat"] = AWAY
    api.always["complete"] = away
    assert node(monotonic_s=lambda: time.monotonic() + sum(leaps)).run() == ExitCode.DONE
    assert len(api.bodies("complete")) >= 1
    assert api.bodies("fail") == api.bodies("release") == []


def test_a_job_that_the_disk_has_no_place_for_is_given_back_and_ends_the_node(
    api: FakeNodeApi, node: NodeFactory
) -> None:
    api.leases = [lease()]
    made = node()

    def lose_the_disk() -> None:
        """In the place of the run's directory lies a file."""
        (run,) = made.work_dir.glob("run-*")
        shutil.rmtree(run)
        run.touch()

    api.hooks["claim"] = lose_the_disk
    with pytest.raises(InvalidInput, match="work_dir"):
        made.run()
    assert [body["reason"] for body in api.bodies("fail")] == [Reason.NODE_DISK]


def test_a_finished_job_that_the_server_refuses_goes_back_to_the_queue(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = [lease()]
    api.always["complete"] = problem(409, "conflict", "count.txt was never committed")
    node().run()
    assert api.routes()[-3:] == ["complete", "release", "claim"]
    [released] = api.bodies("release")
    assert released["reason"] == "released"
    assert "count.txt was never committed" in released["message"]


def test_leaving_with_a_server_that_is_away_ends_within_the_grace_time(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = [lease()]
    made = node(grace_s=0.5)
    api.hooks["complete"] = made.shutdown.ask
    api.always["complete"] = AWAY
    assert made.run() == ExitCode.DONE
    assert api.bodies("fail") == api.bodies("release") == []


TIDY_ENGINE = """
import pathlib
hello()
start = hear()
for step in (1, 2):
    path = pathlib.Path(start["directory"]) / f"c{step}"
    path.write_text(f"state {step}")
    say("checkpoint", attempt=start["attempt"], step=step, path=str(path))
say("cache_get", attempt=start["attempt"], key="k")
hear()  # the agent answers in order: it has seen both checkpoints
for step in (1, 2):
    (pathlib.Path(start["directory"]) / f"c{step}").unlink(missing_ok=True)
say("done", attempt=start["attempt"], step=2)
hear()
"""


def test_a_checkpoint_arrives_though_the_engine_has_tidied_up(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = [lease()]
    api.answers["uploads"] = [AWAY, AWAY, AWAY]  # the uploader still sends the first when both are gone
    node(script=TIDY_ENGINE).run()
    assert len(api.bodies("complete")) == 1
    assert api.checkpoints[2] == b"state 2"


def test_the_order_to_leave_brings_a_checkpoint_and_gives_the_job_back(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = [lease(spec=ENDLESS)]
    made = node()
    api.hooks["heartbeat"] = lambda: None
    beats = iter([None, None, made.shutdown.ask])

    def at_the_third_beat() -> None:
        act = next(beats)
        if act is not None:
            act()
            return
        api.hooks["heartbeat"] = at_the_third_beat

    api.hooks["heartbeat"] = at_the_third_beat
    assert made.run() == ExitCode.DONE
    assert api.routes() == ["claim", "uploads", "checkpoints", "release"]
    [step] = api.checkpoints
    assert api.checkpoints[step] == counted(step)
    [released] = api.bodies("release")
    assert (released["reason"], released["step"]) == ("preempted", step)


def test_a_drain_order_gives_the_job_back_and_ends_the_node(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = [lease(spec=ENDLESS)]
    api.answers["heartbeat"] = [api_ok, api_ok]
    api.order = "drain"
    assert node().run() == ExitCode.DONE
    assert api.routes()[-1] == "release"
    assert len(api.bodies("claim")) == 1


NOTICING_ENGINE = """
hello()
start = hear()
for number in range(2):
    say("notice", attempt=start["attempt"], name="said", data={"the same": "words"})
say("done", attempt=start["attempt"], step=1)
hear()
"""


def test_a_notice_whose_reply_was_lost_is_repeated_under_the_same_id(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = [lease()]
    api.answers["notice"] = [cut]
    node(script=NOTICING_ENGINE).run()
    first, again, second = (body["notice_id"] for body in api.bodies("notice"))
    assert first == again != second


def test_metrics_arrive_before_the_commit_of_their_step_and_before_the_end(
    api: FakeNodeApi, node: NodeFactory
) -> None:
    api.leases = [lease(spec={"steps": 13, "every": 5})]
    api.answers["metrics"] = [AWAY, cut]
    assert node().run() == ExitCode.DONE
    arrived: set[int] = set()
    for call in api.calls:
        if call.route == "metrics":
            arrived |= {point["step"] for point in call.body["points"]}
        if call.route == "checkpoints":
            assert arrived >= set(range(1, call.body["step"] + 1))
        if call.route == "complete":
            assert arrived == set(range(1, 14))
    assert len(api.bodies("checkpoints")) > 0
