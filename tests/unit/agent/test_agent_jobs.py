"""A node and its jobs, end to end: a real engine process, a server steered by the test."""

import hashlib
import os
import re
import shutil
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import NodeFactory
from fake_node_api import Answer, FakeNodeApi, cut, lease, problem

from giornata.agent.exits import ExitCode
from giornata.domain.errors import InvalidInput
from giornata.domain.reasons import Reason

LOST = problem(409, "lease-lost", "the attempt has ended")
AWAY = problem(503, "unavailable", "away")
ENDLESS = {"steps": 10**9, "every": 10**9, "step_s": 0.001}


def counted(steps: int) -> bytes:
    total = 0
    for step in range(1, steps + 1):
        total = (total * 31 + step) % 2**61
    return f"{steps} {total}\n".encode()


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


def api_ok(_: Any) -> Any:

    return httpx.Response(200, json={"order": "continue", "lease_s": 20.0, "renew_every_s": 0.05, "mtbi_s": 1000.0})


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
    api.hooks["complete"] = made.departure.ask
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
    api.answers["uploads"] = [AWAY, AWAY, AWAY]  # the courier is still busy with the first when both are gone
    node(script=TIDY_ENGINE).run()
    assert len(api.bodies("complete")) == 1
    assert api.checkpoints[2] == b"state 2"


def test_the_order_to_leave_brings_a_checkpoint_and_gives_the_job_back(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = [lease(spec=ENDLESS)]
    made = node()
    api.hooks["heartbeat"] = lambda: None
    beats = iter([None, None, made.departure.ask])

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


def test_a_job_goes_on_from_its_newest_checkpoint(api: FakeNodeApi, node: NodeFactory) -> None:
    resume = {"step": 12, "download": api.add_blob(counted(12))}
    api.leases = [lease(checkpoints=[resume])]
    node().run()
    assert api.artifacts == {"count.txt": counted(20)}
    assert min(point["step"] for body in api.bodies("metrics") for point in body["points"]) == 13


def test_a_checkpoint_that_does_not_hold_is_rejected_for_the_one_before(api: FakeNodeApi, node: NodeFactory) -> None:
    bad = {"step": 12, "download": api.add_blob(counted(12), served=b"x" * len(counted(12)))}
    good = {"step": 8, "download": api.add_blob(counted(8))}
    api.leases = [lease(checkpoints=[bad, good])]
    node().run()
    assert len(api.bodies("checkpoints/12/reject")) == 1
    assert api.artifacts == {"count.txt": counted(20)}
    assert min(point["step"] for body in api.bodies("metrics") for point in body["points"]) == 9


@pytest.mark.parametrize("answers", [[cut], [problem(503, "unavailable")], [problem(404, "not-found")]])
def test_whatever_the_server_says_to_a_rejection_the_job_goes_on(
    api: FakeNodeApi, node: NodeFactory, answers: list[Answer]
) -> None:
    """It may not be believed, or be refused: the node begins at the one before, and does not ask for ever."""
    bad = {"step": 12, "download": api.add_blob(counted(12), served=b"x" * len(counted(12)))}
    good = {"step": 8, "download": api.add_blob(counted(8))}
    api.leases = [lease(checkpoints=[bad, good])]
    api.answers["checkpoints/12/reject"] = list(answers)
    node().run()
    assert 1 <= len(api.bodies("checkpoints/12/reject")) <= 2
    assert api.artifacts == {"count.txt": counted(20)}
    assert min(point["step"] for body in api.bodies("metrics") for point in body["points"]) == 9


def picture(api: FakeNodeApi, content: bytes, **served: bytes) -> dict[str, Any]:
    return {"role": "instance", "name": "a picture.png", "caption": None, "download": api.add_blob(content, **served)}


def test_an_input_that_does_not_hash_ends_the_attempt(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = [lease(inputs=[picture(api, b"good"), picture(api, b"right", served=b"wrong")])]
    made = node()
    made.run()
    [failed] = api.bodies("fail")
    assert failed["reason"] == "node_download"
    assert "a picture.png" in failed["message"]
    assert api.artifacts == {}
    assert len(made.naps) >= 1  # it does not ask again at once


INPUTS_ENGINE = """
import pathlib
hello()
start = hear()
texts = [pathlib.Path(each["path"]).read_text() + ":" + each["name"] for each in start["inputs"]]
path = pathlib.Path(start["directory"]) / "texts"
path.write_text(" ".join(texts))
say("artifact", attempt=start["attempt"], name="texts", path=str(path))
say("done", attempt=start["attempt"], step=0)
hear()
"""


def test_inputs_are_on_disk_before_the_engine_starts(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = [lease(inputs=[picture(api, b"one"), picture(api, b"two"), picture(api, b"one")])]
    made = node(script=INPUTS_ENGINE)
    made.run()
    assert api.artifacts["texts"] == b"one:a picture.png two:a picture.png one:a picture.png"
    cached = {path.name for path in (made.work_dir / "cache").glob("??/*")}
    assert cached == {hashlib.sha256(each).hexdigest() for each in (b"one", b"two")}


CACHE_ENGINE = """
import pathlib
hello()
start = hear()
attempt = start["attempt"]
say("cache_get", attempt=attempt, key="latents")
first = hear()
path = pathlib.Path(start["directory"]) / "made"
path.write_text("made once")
say("cache_put", attempt=attempt, key="latents", path=str(path))
say("notice", attempt=attempt, name="said", data={"found": first["path"]})
say("done", attempt=attempt, step=1)
hear()
"""


def test_the_cache_is_asked_and_filled(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = [lease()]
    node(script=CACHE_ENGINE).run()
    [notice] = api.bodies("notice")
    assert (notice["name"], notice["data"]) == ("said", {"found": None})
    assert api.blobs[api.caches["latents"]] == b"made once"
    api.leases = [lease()]
    node(script=CACHE_ENGINE).run()
    found = api.bodies("notice")[1]["data"]["found"]
    assert found is not None
    assert not Path(found).exists()  # it was the attempt's own, and went with it


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


def test_what_is_no_message_becomes_a_line_of_the_log(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = [lease()]
    node(script=PRINTING_ENGINE).run()
    assert len(api.bodies("complete")) == 1
    assert "a print of a library" in api.log()


# ---- the node itself


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
    api.hooks["claim"] = made.departure.ask
    assert made.run() == ExitCode.DONE
    assert api.routes() == ["claim", "release"]
    assert api.bodies("release")[0]["reason"] == "preempted"


def test_a_lease_lost_before_the_engine_has_the_job_starts_nothing(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = [lease(inputs=[picture(api, b"one")])]
    api.always["heartbeat"] = LOST
    api.always["storage/blob"] = lambda _: pytest.fail("nothing is fetched for a lost lease")
    assert node().run() == ExitCode.DONE
    assert api.routes() == ["claim", "claim"]


def test_failures_in_a_row_are_met_with_growing_pauses(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = [lease(spec={"reason": "bad_data"}, attempt_id=f"att_{number}") for number in range(5)]
    made = node(script=FAILING_ENGINE)
    made.run()
    assert len(api.bodies("fail")) == 5
    assert len(made.naps) == 5
    assert made.naps == sorted(made.naps)
    assert made.naps[-1] > 8
