"""Several attempts in one engine: a real engine process that plays a scene, a server steered by the test."""

from collections import Counter
from typing import Any

import httpx
import pytest
from tests.contract.agent.conftest import AgentNode, NodeFactory
from tests.contract.agent.fake_node_api import LOST, FakeNodeApi, cut, lease, problem

from giornata.agent.claiming import ExitCode

# An engine with three places. Each start's spec says what happens once so many have come (`when`, `do`); those who
# `stay` make steps all the while. `quiet` ones stand in line: the engine says nothing of them before they stop.
BATCH_ENGINE = """
import pathlib, threading, time
hello()
starts, here, line = {}, [], []
mouth, told = threading.Lock(), say

def say(type, **fields):
    with mouth:
        told(type, **fields)

def tick():
    while True:
        time.sleep(0.05)
        for attempt in [each for each in here if starts[each]["spec"]["do"] == "stay"]:
            say("progress", attempt=attempt, step=2, total=40)

threading.Thread(target=tick, daemon=True).start()

def free_places():
    free = 3 - len(here) if here else 0
    say("seats", key=next(iter(starts.values()))["joint_key"], free=free, attempts=here)

def end(type, *attempts, **fields):
    for attempt in attempts:
        here.remove(attempt)
    free_places()
    for attempt in attempts:
        say(type, attempt=attempt, **fields)

def turn():
    for step in range(1, 40):
        for attempt in here:
            say("progress", attempt=attempt, step=step, total=40)
        time.sleep(0.01)

def play(do):
    if do == "done":
        turn()
        end("done", *here[:], step=40)
    if do == "break":
        end("failed", *here[:], reason="node_driver", message="CUDA error")
        sys.exit(70)
    if do == "crash":
        os.kill(os.getpid(), 9)
    if do == "fail":
        together = here[:]
        end("failed", *together, reason="node_vram", message="out of memory", together=together)
    if do == "hang":
        say("alive")
        time.sleep(1000)

def stop(message):
    attempt = message["attempt"]
    if attempt in line:
        line.remove(attempt)
        say("stopped", attempt=attempt)
        play("done")
        return
    do = starts[attempt]["spec"]["do"]
    if do == "deaf":
        return
    if message["checkpoint"]:
        time.sleep(0.5)
        path = pathlib.Path(starts[attempt]["directory"]) / "c"
        path.write_text(f"state of {attempt}")
        say("checkpoint", attempt=attempt, step=7, path=str(path))
    end("stopped", attempt, step=7)
    if do == "leave":
        play("done")

while True:
    message = hear()
    if message["type"] == "shutdown":
        os._exit(0)
    if message["type"] == "stop":
        stop(message)
        continue
    if message["spec"].get("quiet"):
        line.append(message["attempt"])
        play(message["spec"].get("do"))
        continue
    starts[message["attempt"]] = message
    here.append(message["attempt"])
    say("progress", attempt=message["attempt"], step=1, total=40)
    free_places()
    scenes = [starts[each]["spec"]["do"] for each in here if starts[each]["spec"]["when"] == len(here)]
    if scenes:
        play(scenes[0])
"""


def leases(*scenes: dict[str, Any], key: str | None = "k") -> list[dict[str, Any]]:
    """att_1, att_2 … with tokens and jobs of these numbers."""
    return [
        lease(spec=scene, attempt_id=f"att_{n}", token=f"token-{n}", job_id=f"job_{n}", joint_key=key)
        for n, scene in enumerate(scenes, start=1)
    ]


def together(node: NodeFactory, **settings: Any) -> AgentNode:
    return node(script=BATCH_ENGINE, **{"places": 8, "companion_every_s": 0.05} | settings)


def of(api: FakeNodeApi, number: int) -> list[str]:
    """The routes that an attempt has called, in order."""
    quiet = ("heartbeat", "metrics", "log", "claim")
    return [call.route for call in api.calls if call.bearer == f"token-{number}" and call.route not in quiet]


def failures(api: FakeNodeApi) -> dict[str, dict[str, Any]]:
    return {call.bearer: call.body for call in api.calls if call.route == "fail"}


def keys_claimed(api: FakeNodeApi) -> list[str | None]:
    return [body["joint_key"] for body in api.bodies("claim")]


def test_companions_are_claimed_by_the_key_until_the_engine_is_full(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = leases(*[{"when": 3, "do": "done"}] * 3, {"when": 1, "do": "done"})
    assert together(node, claim_wait_s=1.0).run() == ExitCode.DONE
    assert Counter(call.route for call in api.calls)["complete"] == 4
    claims = api.bodies("claim")
    assert keys_claimed(api)[:4] == [None, "k", "k", None]
    assert [claim["wait_s"] for claim in claims[:4]] == [1.0, 0.0, 0.0, 1.0]
    assert len({claim["request_id"] for claim in claims}) == len(claims)
    # The third is there before anybody is done, and while all three are there nobody is asked for.
    routes = [call.route for call in api.calls if call.route in {"claim", "complete"}]
    assert routes[:6] == ["claim"] * 3 + ["complete"] * 3
    pids = {body["engine_pid"] for body in api.bodies("heartbeat")} - {None}
    assert len(pids) == 1


def test_no_more_attempts_are_in_an_engine_than_the_node_shall_have(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = leases({"when": 2, "do": "done"}, {"when": 2, "do": "done"})
    together(node, places=2).run()
    assert keys_claimed(api)[:3] == [None, "k", None]
    assert [of(api, n) for n in (1, 2)] == [["complete"]] * 2


def test_a_batch_takes_nobody_in_for_ever(api: FakeNodeApi, node: NodeFactory) -> None:
    """Others wait as well."""
    api.leases = leases({"when": 1, "do": "done"}, {"when": 1, "do": "done"})
    together(node, join_for_s=0.0).run()
    assert keys_claimed(api) == [None, None, None]
    assert [of(api, n) for n in (1, 2)] == [["complete"]] * 2


def test_an_engine_that_offers_no_places_gets_one_attempt_at_a_time(api: FakeNodeApi, node: NodeFactory) -> None:
    counting = {"steps": 20, "every": 5, "step_s": 0.01}
    api.leases = leases(counting, counting)
    node(places=8, companion_every_s=0.01).run()
    assert keys_claimed(api) == [None, None, None]
    ends = [call.route for call in api.calls if call.route in {"claim", "complete"}]
    assert ends == ["claim", "complete", "claim", "complete", "claim"]


def test_engine_crash_fails_every_attempt_in_it_and_next_attempt_runs_in_new_engine(
    api: FakeNodeApi, node: NodeFactory
) -> None:
    crash, done = {"when": 2, "do": "crash"}, {"when": 1, "do": "done"}
    api.leases = [*leases(crash, crash), *leases({}, {}, done, key=None)[2:]]
    made = together(node, places=2)
    assert made.run() == ExitCode.DONE
    failed = failures(api)
    assert set(failed) == {"token-1", "token-2"}
    for body in failed.values():
        assert (body["reason"], body["exit_code"]) == ("crashed", -9)
        assert body["together"] == ["att_1", "att_2"]
    assert of(api, 3) == ["complete"]
    pids = [body["node"]["engine_pid"] for body in api.bodies("claim")]
    assert pids[0] == pids[1] != pids[2]
    assert len(made.naps) == 1  # one crash, one pause


def test_a_crash_of_one_that_was_alone_is_its_own(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = leases({"when": 1, "do": "crash"})
    together(node).run()
    assert failures(api)["token-1"]["together"] == []


def test_a_fault_of_the_batch_is_reported_with_all_that_it_ended(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = leases({"when": 2, "do": "fail"}, {"when": 2, "do": "fail"})
    together(node).run()
    failed = failures(api)
    assert {body["reason"] for body in failed.values()} == {"node_vram"}
    assert [body["together"] for body in failed.values()] == [["att_1", "att_2"]] * 2


def test_an_engine_that_hangs_is_ended_once_and_for_all(api: FakeNodeApi, node: NodeFactory) -> None:
    """What comes after finds a new engine, which nobody kills for the old one's sake."""
    hang = {"when": 2, "do": "hang"}
    api.leases = [*leases(hang, hang), *leases({}, {}, {"when": 1, "do": "done"}, key=None)[2:]]
    together(node, alive_s=0.4, places=2).run()
    failed = failures(api)
    assert set(failed) == {"token-1", "token-2"}
    for body in failed.values():
        assert body["reason"] == "node_driver"
        assert "the engine hangs" in body["message"]
        assert body["together"] == ["att_1", "att_2"]
    assert of(api, 3) == ["complete"]
    assert len({body["node"]["engine_pid"] for body in api.bodies("claim")[2:]}) == 1


def lost_for(api: FakeNodeApi, number: int, *, once_there: int) -> None:
    """Heartbeats of this attempt are refused as soon as so many attempts make steps."""
    working: set[str] = set()

    def answer(request: httpx.Request) -> httpx.Response:
        body = api.calls[-1]
        if body.body["step"] > 0:
            working.add(body.bearer)
        if body.bearer == f"token-{number}" and len(working) >= once_there:
            return LOST(request)
        reply = {"order": "continue", "lease_s": 20.0, "renew_every_s": 0.05, "mtbi_s": 1000.0}
        return httpx.Response(200, json=reply)

    api.always["heartbeat"] = answer


def test_the_end_of_one_leaves_the_other_at_work(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = leases({"when": 9, "do": "leave"}, {"when": 9, "do": "stay"})
    lost_for(api, 1, once_there=2)
    api.answers["claim"] = [granted(api), granted(api)]
    api.always["claim"] = lambda _: httpx.Response(200, json={"reason": "empty-queue"})
    made = together(node)

    def leave() -> None:
        api.always.pop("claim")

    api.hooks["complete"] = leave
    assert made.run() == ExitCode.DONE
    assert of(api, 1) == []
    assert of(api, 2) == ["complete"]
    assert len({body["engine_pid"] for body in api.bodies("heartbeat")} - {None}) == 1
    assert made.left_behind() == []


def granted(api: FakeNodeApi) -> Any:
    return lambda _: httpx.Response(200, json={"lease": api.leases.pop(0)})


def test_attempt_that_ignores_stop_kills_engine_and_other_batch_member_is_not_blamed(
    api: FakeNodeApi, node: NodeFactory
) -> None:
    api.leases = leases({"when": 9, "do": "deaf"}, {"when": 9, "do": "stay"})
    lost_for(api, 1, once_there=2)
    together(node, stop_grace_s=0.3).run()
    assert of(api, 1) == []
    failed = failures(api)["token-2"]
    assert failed["together"] == ["att_1", "att_2"]
    assert "another attempt in it did not stop" in failed["message"]


@pytest.mark.parametrize("by", ["signal", "server"])
def test_all_write_a_checkpoint_and_give_back_when_the_node_is_told_to_leave(
    api: FakeNodeApi, node: NodeFactory, by: str
) -> None:
    api.leases = leases({"when": 9, "do": "stay"}, {"when": 9, "do": "stay"})
    api.answers["claim"] = [granted(api), granted(api)]
    api.always["claim"] = lambda _: httpx.Response(200, json={"reason": "empty-queue"})
    made, claims = together(node), []

    def look() -> None:
        there = {call.bearer for call in api.calls if call.route == "heartbeat" and call.body["step"] > 0}
        if len(there) < 2:
            api.hooks["heartbeat"] = look
        elif by == "signal":
            claims.append(len(api.bodies("claim")))
            made.shutdown.ask()
        else:
            api.order = "drain"

    api.hooks["heartbeat"] = look
    assert made.run() == ExitCode.DONE
    for number in (1, 2):
        assert of(api, number) == ["uploads", "checkpoints", "release"]
    assert {body["reason"] for body in api.bodies("release")} == {"preempted"}
    assert set(api.uploads.values()) == {b"state of att_1", b"state of att_2"}
    assert made.left_behind() == []
    if by == "signal":
        assert len(api.bodies("claim")) <= claims[0] + 1  # one may have been on its way


def test_attempt_queued_too_long_in_engine_is_released_and_other_completes(
    api: FakeNodeApi, node: NodeFactory
) -> None:
    """The first makes steps all the while; what it waits for is the stop of the second."""
    api.leases = leases({"when": 9, "do": "stay"}, {"quiet": True})
    made = together(node, stall_s=2.5)
    assert made.run() == ExitCode.DONE
    assert of(api, 2) == ["release"]
    assert "no place" in api.bodies("release")[0]["message"]
    assert of(api, 1) == ["complete"]


def test_attempt_queued_in_engine_when_device_breaks_is_released_without_failure(
    api: FakeNodeApi, node: NodeFactory
) -> None:
    api.leases = leases({"when": 9, "do": "stay"}, {"quiet": True, "do": "break"})
    together(node).run()
    assert {token: body["reason"] for token, body in failures(api).items()} == {"token-1": "node_driver"}
    assert of(api, 2) == ["release"]
    assert "before it had the job" in api.bodies("release")[0]["message"]


def test_a_claim_of_a_companion_whose_reply_was_lost_is_repeated_under_the_same_id(
    api: FakeNodeApi, node: NodeFactory
) -> None:
    api.leases = leases({"when": 2, "do": "done"}, {"when": 2, "do": "done"})
    api.answers["claim"] = [granted(api), cut, granted(api)]
    together(node).run()
    claims = api.bodies("claim")
    assert claims[1]["joint_key"] == "k"
    assert claims[1] == claims[2]
    assert [of(api, n) for n in (1, 2)] == [["complete"]] * 2


def test_a_refused_claim_of_a_companion_does_not_end_the_node(api: FakeNodeApi, node: NodeFactory) -> None:
    api.leases = leases({"when": 9, "do": "leave"}, {"when": 1, "do": "done"})
    refuse = problem(403, "forbidden", "no companions for you")
    api.answers["claim"] = [granted(api), refuse, refuse]
    made = together(node)
    lost_after_claims(api, 2)
    assert made.run() == ExitCode.DONE
    assert of(api, 2) == ["complete"]
    claims = api.bodies("claim")
    assert len({claim["request_id"] for claim in claims[:3]}) == 3


def lost_after_claims(api: FakeNodeApi, number: int) -> None:
    """The first attempt's lease is lost when so many claims were made."""

    def answer(request: httpx.Request) -> httpx.Response:
        if api.calls[-1].bearer == "token-1" and len(api.bodies("claim")) >= number:
            return LOST(request)
        reply = {"order": "continue", "lease_s": 20.0, "renew_every_s": 0.05, "mtbi_s": 1000.0}
        return httpx.Response(200, json=reply)

    api.always["heartbeat"] = answer


def test_a_job_that_was_not_asked_for_is_handed_back_and_no_companion_asked_for_again(
    api: FakeNodeApi, node: NodeFactory
) -> None:
    """By a server that knows of no companions, and hands out any job."""
    api.leases = [*leases({"when": 9, "do": "leave"}), *leases({}, {"when": 1, "do": "done"}, key=None)[1:]]
    api.always["claim"] = granted(api)
    made = together(node)

    def enough() -> None:
        api.always.pop("claim")
        lost_after_claims(api, 2)

    api.hooks["release"] = enough
    assert made.run() == ExitCode.DONE
    assert of(api, 2) == ["release"]
    assert "may not" in api.bodies("release")[0]["message"]
    assert keys_claimed(api) == [None, "k", None]
