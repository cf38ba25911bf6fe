"""Engines that crash, hang, fail or say nonsense, and what the node reports of them."""

import os
import re
import time
from pathlib import Path

import httpx
import pytest
from tests.contract.agent.conftest import NodeFactory
from tests.contract.agent.fake_node_api import LOST, FakeNodeApi, api_ok, lease, problem

from giornata.agent.claiming import ExitCode
from giornata.domain.jobs.reasons import Reason

CRASHING_ENGINE = """
hello()
start = hear()
say("progress", attempt=start["attempt"], step=3, total=9)
print("the last words", file=sys.stderr)
os._exit(7) if start["spec"].get("code") else os.kill(os.getpid(), 9)
"""


def test_a_crash_is_reported_with_the_engines_last_words(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = [lease(spec={"code": True})]
    made = node(script=CRASHING_ENGINE)
    assert made.run() == ExitCode.DONE
    [failed] = api.bodies("fail")
    assert (failed["reason"], failed["exit_code"], failed["step"]) == ("crashed", 7, 3)
    assert failed["together"] == []
    assert "the last words" in failed["log_tail"]
    assert "the last words" in api.log()
    first, second = (body["node"]["engine_pid"] for body in api.bodies("claim"))
    assert first != second  # another engine is ready for the next job


def test_a_kill_by_the_system_is_named(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = [lease(spec={})]
    node(script=CRASHING_ENGINE).run()
    [failed] = api.bodies("fail")
    assert failed["exit_code"] == -9
    assert re.search("SIGKILL.*out of memory", failed["message"])


def test_an_engine_without_a_step_is_ended(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = [lease()]
    node(script="hello()\nhear()\nhear()\n", stall_s=0.3).run()
    [failed] = api.bodies("fail")
    assert failed["reason"] == "too_slow"


STUCK_ENGINE = """
import threading, time
hello()
start = hear()

def tick():
    while True:
        say("alive")
        time.sleep(0.05)

threading.Thread(target=tick, daemon=True).start()
say("phase", attempt=start["attempt"], name="caching", done=0)
time.sleep(1000)
"""


def test_an_engine_whose_work_is_stuck_is_ended_however_alive_it_is(api: FakeNodeApi, node: NodeFactory) -> None:
    """As with a kernel that never comes back: the thread that says alive knows nothing of it."""
    api.leases = [lease()]
    made = node(script=STUCK_ENGINE, stall_s=0.8, alive_s=60.0)
    made.run()
    [failed] = api.bodies("fail")
    assert failed["reason"] == "too_slow"
    pid = api.bodies("claim")[0]["node"]["engine_pid"]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


PHASES_ENGINE = """
import pathlib, time
hello()
start = hear()
for part in range(6):
    say("phase", attempt=start["attempt"], name=f"part {part}")
    while not (pathlib.Path(start["spec"]["leaps"]) / str(part)).exists():
        time.sleep(0.01)
say("done", attempt=start["attempt"], step=0)
hear()
"""


def test_phases_that_go_on_are_no_stall(api: FakeNodeApi, node: NodeFactory, tmp_path: Path) -> None:
    """Ten minutes each, where fifteen are allowed: the clock leaps whenever the server has heard of one."""
    leaps: list[float] = []

    def beat(_: httpx.Request) -> httpx.Response:
        if api.calls[-1].body["phase"] == f"part {len(leaps)}":
            leaps.append(600.0)
            (tmp_path / str(len(leaps) - 1)).touch()
        return httpx.Response(
            200, json={"order": "continue", "lease_s": 1e6, "renew_every_s": 0.05, "mtbi_s": 1000.0}
        )

    api.leases = [lease(spec={"leaps": str(tmp_path)}, lease_s=1e6)]
    api.always["heartbeat"] = beat
    node(script=PHASES_ENGINE, stall_s=900.0, monotonic_s=lambda: time.monotonic() + sum(leaps)).run()
    assert api.bodies("fail") == []
    assert len(api.bodies("complete")) == 1
    assert len(leaps) == 6


def test_an_engine_that_said_alive_and_fell_silent_is_ended(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = [lease()]
    node(script="hello()\nhear()\nsay('alive')\nhear()\n", alive_s=0.3).run()
    [failed] = api.bodies("fail")
    assert failed["reason"] == "node_driver"


FAILING_ENGINE = """
hello()
start = hear()
fault = {"where": "a.png", "message": "is broken", "hint": "send it again"}
say("failed", attempt=start["attempt"], reason=start["spec"]["reason"], message="cannot", faults=[fault])
hear()
"""


def test_a_failure_is_passed_on_with_every_fault(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = [lease(spec={"reason": "bad_data"})]
    node(script=FAILING_ENGINE).run()
    [failed] = api.bodies("fail")
    assert failed["reason"] == "bad_data"
    assert failed["faults"] == [{"where": "a.png", "message": "is broken", "hint": "send it again"}]


def test_an_engine_cannot_name_a_reason_that_is_the_servers(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = [lease(spec={"reason": "canceled"})]
    node(script=FAILING_ENGINE).run()
    assert api.bodies("fail")[0]["reason"] == "crashed"


DEAF_ENGINE = """
hello()
start = hear()
while True:
    say("progress", attempt=start["attempt"], step=1)
    __import__("time").sleep(0.01)
"""


def test_an_engine_that_does_not_stop_is_killed(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = [lease()]
    api.answers["heartbeat"] = [api_ok, LOST]
    assert node(script=DEAF_ENGINE, stop_grace_s=0.3).run() == ExitCode.DONE
    first, second = (body["node"]["engine_pid"] for body in api.bodies("claim"))
    assert first != second


MISSING_ARTIFACT = """
hello()
start = hear()
say("artifact", attempt=start["attempt"], name="a", path="/nowhere/at/all")
say("done", attempt=start["attempt"], step=1)
hear()
"""


def test_a_job_without_its_artifact_is_not_done(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = [lease()]
    node(script=MISSING_ARTIFACT).run()
    assert api.bodies("complete") == []
    assert "/nowhere/at/all" in api.bodies("fail")[0]["message"]


@pytest.mark.parametrize("answer", [(403, "forbidden"), (409, "blob-missing"), (409, "blob-mismatch")])
def test_a_job_is_not_to_blame_for_a_storage_that_does_not_take_its_result(
    api: FakeNodeApi, node: NodeFactory, answer: tuple[int, str]
) -> None:
    api.leases = [lease()]
    api.answers["artifacts"] = [problem(*answer)] * 3
    node().run()
    assert api.bodies("complete") == []
    assert api.bodies("fail")[0]["reason"] == Reason.NODE_DOWNLOAD


PRINTING_ENGINE = """
hello()
start = hear()
print("a print of a library")
print('{"type": "unknown"}')
say("done", attempt=start["attempt"], step=1)
hear()
"""


def test_engine_output_that_is_no_message_becomes_log_line(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = [lease()]
    node(script=PRINTING_ENGINE).run()
    assert len(api.bodies("complete")) == 1
    assert "a print of a library" in api.log()


def test_failures_in_a_row_are_met_with_growing_pauses(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = [lease(spec={"reason": "bad_data"}, attempt_id=f"att_{number}") for number in range(5)]
    made = node(script=FAILING_ENGINE)
    made.run()
    assert len(api.bodies("fail")) == 5
    assert len(made.naps) == 5
    assert made.naps == sorted(made.naps)
    assert made.naps[-1] > 8
