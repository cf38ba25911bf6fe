"""The parts of the agent, each driven by hand with a clock of the test's."""

import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.contract.agent.fake_node_api import LOST, FakeNodeApi, cut, lease, problem

from giornata.agent.attempt.commands import ShutdownSignal
from giornata.agent.attempt.events import Event
from giornata.agent.attempt.heartbeat import HeartbeatThread
from giornata.agent.attempt.lease import LeaseCalls, LocalLease
from giornata.agent.settings import AgentSettings
from giornata.agent.transfer.log_shipper import KEPT, Backlog, LogShipper
from giornata.agent.transfer.transport import HttpStorage
from giornata.agent.transfer.uploader import AttemptUploader
from giornata.client.node import NodeClient
from giornata.client.retry import delays_s
from giornata.domain.errors import BlobMismatch, Conflict, InvalidInput, LeaseLost, Unavailable
from giornata.protocol.node.pipe import CheckpointWritten
from giornata.protocol.node.work import Heartbeat, Lease

AWAY = problem(503, "unavailable")


class SleepClock:
    """Seconds that pass only when somebody sleeps, or the test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


@pytest.fixture
def clock() -> SleepClock:
    return SleepClock()


def held(clock: SleepClock, **fields: Any) -> LocalLease:
    return LocalLease(Lease.model_validate(lease(lease_s=30.0, **fields)), granted_at_s=clock(), monotonic_s=clock)


def calls(clock: SleepClock, of: LocalLease) -> LeaseCalls:
    return LeaseCalls(of, rng=random.Random(1), monotonic_s=clock, sleep=clock.sleep)


def node_client(api: FakeNodeApi) -> NodeClient:
    return NodeClient(api.client(), node_key="node-key")


# ---- the lease


def test_a_lease_ends_one_lease_after_the_last_renewal_was_sent(clock: SleepClock) -> None:
    lost: list[str] = []
    mine = LocalLease(
        Lease.model_validate(lease(lease_s=30.0)), granted_at_s=clock(), monotonic_s=clock, on_lost=lost.append
    )
    clock.now_s += 20
    mine.renewed(sent_at_s=clock() - 15, lease_s=30.0)
    clock.now_s += 14.9
    mine.check()
    assert mine.remaining_s() == pytest.approx(0.1)
    clock.now_s += 0.1
    with pytest.raises(LeaseLost, match="own clock"):
        mine.check()
    mine.renewed(sent_at_s=clock(), lease_s=30.0)
    with pytest.raises(LeaseLost):  # what was given up is not taken up again
        mine.check()
    assert len(lost) == 1


def test_calls_are_repeated_until_the_lease_ends_and_not_made_after_it(clock: SleepClock) -> None:
    made = 0

    def away(_: Lease) -> None:
        nonlocal made
        made += 1
        raise Unavailable("away")

    mine = held(clock)
    with pytest.raises(LeaseLost):
        calls(clock, mine).persist(away)
    assert clock() - 1000.0 >= 30.0
    assert made >= 3
    before = made
    with pytest.raises(LeaseLost):
        calls(clock, mine).once(away)
    assert made == before


def test_a_refused_call_is_not_repeated(clock: SleepClock) -> None:
    made = 0

    def refused(_: Lease) -> None:
        nonlocal made
        made += 1
        raise Conflict("no")

    with pytest.raises(Conflict):
        calls(clock, held(clock)).persist(refused)
    assert made == 1


def test_a_409_lease_lost_reaches_everybody(clock: SleepClock) -> None:
    mine = held(clock)

    def lost(_: Lease) -> None:
        raise LeaseLost("another node has it")

    with pytest.raises(LeaseLost):
        calls(clock, mine).persist(lost)
    assert "another node has it" in (mine.why_lost() or "")


def test_a_call_with_an_end_of_its_own_gives_up_then(clock: SleepClock) -> None:
    def away(_: Lease) -> None:
        raise Unavailable("away")

    with pytest.raises(Unavailable):
        calls(clock, held(clock)).persist(away, until=lambda: 1005.0)
    assert 5 <= clock() - 1000.0 < 6


def test_delays_grow_up_to_their_bound_and_differ() -> None:
    delays = delays_s(random.Random(3), first_s=1.0, most_s=8.0)
    drawn = [next(delays) for _ in range(50)]
    assert all(0.5 <= each <= 8.0 for each in drawn)
    assert max(drawn[10:]) > 6
    assert min(drawn[10:]) >= 4
    assert len(set(drawn)) == 50


# ---- the heart


def heart(
    api: FakeNodeApi,
    mine: LocalLease,
    clock: SleepClock,
    *,
    is_alive: Callable[[], bool] = lambda: True,
    is_ending: Callable[[], bool] = lambda: False,
) -> HeartbeatThread:
    return HeartbeatThread(
        node=node_client(api),
        held=mine,
        snapshot=lambda: Heartbeat(step=3, phase="training"),
        is_alive=is_alive,
        ordered=lambda _: None,
        monotonic_s=clock,
        rng=random.Random(2),
        is_ending=is_ending,
    )


def test_a_beat_that_is_refused_loses_the_lease_unless_a_report_is_just_ending_it(
    api: FakeNodeApi, clock: SleepClock
) -> None:
    api.always["heartbeat"] = LOST
    mine = held(clock)
    heart(api, mine, clock, is_ending=lambda: True).beat()
    assert mine.why_lost() is None
    heart(api, mine, clock).beat()
    assert "refuses" in (mine.why_lost() or "")


def test_a_beat_renews_from_when_it_was_sent(api: FakeNodeApi, clock: SleepClock) -> None:
    mine = held(clock)
    clock.now_s += 25
    assert heart(api, mine, clock).beat() == 0.05  # as the server says
    assert mine.remaining_s() == 20.0
    assert api.bodies("heartbeat")[0]["step"] == 3


def test_beats_that_fail_are_repeated_with_growing_pauses_never_hot(api: FakeNodeApi, clock: SleepClock) -> None:
    api.always["heartbeat"] = AWAY
    mine = held(clock, renew_every_s=10.0)
    made = heart(api, mine, clock)
    waits = [made.beat() for _ in range(8)]
    assert min(waits) >= 0.25
    assert max(waits) > 5
    assert max(waits) <= 10
    assert mine.why_lost() is None


@pytest.mark.parametrize(
    "answer", [problem(409, "lease-lost"), problem(401, "unauthenticated"), problem(404, "not-found")]
)
def test_a_refused_beat_is_the_end_of_the_lease(api: FakeNodeApi, clock: SleepClock, answer: Any) -> None:
    api.always["heartbeat"] = answer
    mine = held(clock)
    heart(api, mine, clock).beat()
    assert mine.why_lost() is not None


def test_no_beat_for_a_loop_that_hangs(api: FakeNodeApi, clock: SleepClock) -> None:
    heart(api, held(clock), clock, is_alive=lambda: False).beat()
    assert api.calls == []


def test_a_nudge_brings_a_beat_before_its_time(api: FakeNodeApi, clock: SleepClock) -> None:
    beaten = threading.Event()
    api.hooks["heartbeat"] = beaten.set
    made = heart(api, held(clock), clock)
    made.start(after_s=3600)
    made.nudge()
    assert beaten.wait(10)
    made.stop()


def test_stopping_wakes_the_sleeper(api: FakeNodeApi, clock: SleepClock) -> None:
    made = heart(api, held(clock), clock)
    made.start(after_s=3600)
    made.stop()
    made._thread.join(10)
    assert not made._thread.is_alive()
    assert api.calls == []


# ---- the log shipper


def test_a_backlog_forgets_the_oldest_and_keeps_the_numbers() -> None:
    backlog = Backlog[str](kept=3)
    for text in "abcde":
        backlog.add(text)
    assert backlog.batch() == (2, ("c", "d", "e"))
    backlog.sent(4)
    assert backlog.batch() == (4, ("e",))
    backlog.sent(2)  # what was dropped meanwhile is not dropped twice
    assert backlog.batch() == (4, ("e",))


def test_lines_that_could_not_be_sent_are_sent_again_under_their_numbers(api: FakeNodeApi, clock: SleepClock) -> None:
    journal = LogShipper(node_client(api), calls(clock, held(clock)))
    journal.line("one\ntwo")
    api.answers["log"] = [cut]
    journal.flush()
    journal.line("three")
    journal.flush()
    journal.flush()
    first, second = api.bodies("log")
    assert first == {"first": 0, "lines": ["one", "two"]}
    assert second == {"first": 0, "lines": ["one", "two", "three"]}


def test_a_refused_batch_does_not_hold_up_the_next(api: FakeNodeApi, clock: SleepClock) -> None:
    journal = LogShipper(node_client(api), calls(clock, held(clock)))
    api.answers["metrics"] = [problem(400, "invalid-input")]
    journal.metrics(1, {"loss": 1.0, "nan": float("nan")})
    journal.flush()
    journal.metrics(2, {"loss": 0.5})
    journal.flush()
    assert [body["points"] for body in api.bodies("metrics")] == [
        [{"step": 1, "values": {"loss": 1.0}}],
        [{"step": 2, "values": {"loss": 0.5}}],
    ]


def test_the_journal_is_bounded(api: FakeNodeApi, clock: SleepClock) -> None:
    journal = LogShipper(node_client(api), calls(clock, held(clock)))
    for number in range(KEPT + 10):
        journal.line(str(number))
    journal.flush()
    assert api.bodies("log")[0]["first"] == 10
    assert len(api.log()) == KEPT


# ---- the uploader


def no_points() -> None:
    """An engine that measures nothing."""


def attempt_uploader(
    api: FakeNodeApi,
    mine: LocalLease,
    clock: SleepClock,
    events: list[Event],
    deliver_points: Callable[[], None] = no_points,
) -> AttemptUploader:
    return AttemptUploader(
        node=node_client(api),
        calls=calls(clock, mine),
        storage=HttpStorage(api.client()),
        post=events.append,
        monotonic_s=clock,
        patience_s=600.0,
        deliver_points=deliver_points,
    )


def checkpoint(step: int, path: Path) -> CheckpointWritten:
    return CheckpointWritten(attempt="a", step=step, path=path)


def test_uploader_with_several_pending_checkpoints_delivers_only_newest(
    api: FakeNodeApi, clock: SleepClock, tmp_path: Path
) -> None:
    events: list[Event] = []
    made = attempt_uploader(api, held(clock), clock, events)
    for step in (1, 2, 3):
        path = tmp_path / str(step)
        path.write_text(f"state {step}")
        made.file(checkpoint(step, path), path)
    made.start()
    while not made.is_idle():
        pass
    made.stop(wait_s=10)
    assert api.checkpoints == {3: b"state 3"}
    assert events == []
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_is_committed_only_when_the_metrics_before_it_have_arrived(
    api: FakeNodeApi, clock: SleepClock, tmp_path: Path
) -> None:
    lease_of_clock = held(clock)
    journal = LogShipper(node_client(api), calls(clock, lease_of_clock))
    made = attempt_uploader(api, lease_of_clock, clock, [], journal.deliver_points)
    for step in (1, 2):
        journal.metrics(step, {"loss": 1.0 / step})
    api.answers["metrics"] = [cut]  # the first try is lost on its way
    (tmp_path / "c").write_text("state")
    made.file(checkpoint(2, tmp_path / "c"), tmp_path / "c")
    made.start()
    while not made.is_idle():
        pass
    made.stop(wait_s=10)
    assert api.routes(without=()) == ["uploads", "metrics", "metrics", "checkpoints"]
    assert [point["step"] for point in api.bodies("metrics")[-1]["points"]] == [1, 2]


def test_a_checkpoint_without_metrics_before_it_costs_no_call_more(
    api: FakeNodeApi, clock: SleepClock, tmp_path: Path
) -> None:
    lease_of_clock = held(clock)
    journal = LogShipper(node_client(api), calls(clock, lease_of_clock))
    made = attempt_uploader(api, lease_of_clock, clock, [], journal.deliver_points)
    (tmp_path / "c").write_text("state")
    made.file(checkpoint(2, tmp_path / "c"), tmp_path / "c")
    made.start()
    while not made.is_idle():
        pass
    made.stop(wait_s=10)
    assert api.routes(without=()) == ["uploads", "checkpoints"]


def test_bytes_that_arrive_spoiled_are_uploaded_again(api: FakeNodeApi, clock: SleepClock, tmp_path: Path) -> None:
    events: list[Event] = []
    made = attempt_uploader(api, held(clock), clock, events)
    api.answers["checkpoints"] = [problem(409, "blob-mismatch"), problem(409, "blob-missing")]
    (tmp_path / "c").write_text("state")
    made.file(checkpoint(1, tmp_path / "c"), tmp_path / "c")
    made.start()
    while not made.is_idle():
        pass
    made.stop(wait_s=10)
    assert api.checkpoints == {1: b"state"}
    assert len(api.uploads) == 3


# ---- the node


def test_every_fault_of_the_settings_is_listed(tmp_path: Path) -> None:
    settings = AgentSettings(
        url="server",
        key="",
        machine_id="m",
        name="n",
        work_dir=tmp_path,
        workloads={"count": ("a",), "x-b": ()},
        kinds=("x-c", "trian"),
    )
    where = [fault.where for fault in settings.faults()]
    assert where == ["workloads.count", "workloads.x-b", "kinds", "kinds", "url", "key"]


def test_the_order_to_leave_ends_a_sleep() -> None:
    shutdown = ShutdownSignal()
    shutdown.ask()
    shutdown.wait(3600)
    shutdown.wait(3600)


def test_the_agent_loads_no_torch() -> None:
    heavy = "{'torch', 'numpy', 'PIL', 'diffusers', 'transformers', 'sqlalchemy', 'fastapi'}"
    script = f"import giornata.agent.main, sys; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# ---- the client


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (problem(409, "lease-lost"), LeaseLost),
        (problem(409, "blob-mismatch"), BlobMismatch),
        (problem(409, "of a later version"), Conflict),
        (lambda _: httpx.Response(502, text="<html>bad gateway</html>"), Unavailable),
        (lambda _: httpx.Response(409, text="<html>please log in</html>"), Unavailable),
        (lambda _: httpx.Response(429), Unavailable),
        (lambda _: httpx.Response(302, headers={"location": "http://login"}), Unavailable),
        (lambda _: httpx.Response(200, text="<html>a proxy's page</html>"), Unavailable),
        (lambda _: httpx.Response(418, text="teapot"), InvalidInput),
        (cut, Unavailable),
    ],
)
def test_node_client_maps_http_responses_to_errors(api: FakeNodeApi, answer: Any, error: type[Exception]) -> None:
    api.always["heartbeat"] = answer
    with pytest.raises(error) as caught:
        node_client(api).heartbeat(Lease.model_validate(lease()), Heartbeat())
    assert caught.type is error


def test_every_fault_of_a_problem_document_arrives(api: FakeNodeApi) -> None:
    faults = [
        {"where": "spec.rank", "message": "is 0", "hint": "1 to 512"},
        {"where": "spec.seed", "message": "is -1"},
    ]
    api.always["heartbeat"] = lambda _: httpx.Response(400, json={"code": "invalid-input", "faults": faults})
    with pytest.raises(InvalidInput) as caught:
        node_client(api).heartbeat(Lease.model_validate(lease()), Heartbeat())
    assert [str(fault) for fault in caught.value.faults] == ["spec.rank: is 0 (1 to 512)", "spec.seed: is -1"]
