"""The server's loops survive whatever they run."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fixtures.contexts import CountedIds, FinePictures, ManualClock
from tests.fixtures.databases import new_sqlite

from giornata.blobs.filesystem import FilesystemBlobs
from giornata.control.access.install import install
from giornata.control.context import Context
from giornata.control.loops import (
    DEFAULT_SCHEDULE,
    FLEET_TIME_LOOP,
    LONGEST_DONE,
    LONGEST_PAUSE_S,
    REQUEST_COUNTS_LOOP,
    Loop,
    Loops,
    pause_s,
)
from giornata.domain.errors import Unavailable
from giornata.store.database.database import open_store


@pytest.fixture
def ctx(tmp_path: Path) -> Iterator[Context]:
    url, clock = new_sqlite(tmp_path), ManualClock()
    blobs = FilesystemBlobs(tmp_path / "blobs", signing_key=b"k" * 32, base_url="http://x.invalid", clock=clock)
    with closing(open_store(url)) as store:
        ctx = Context(store=store, blobs=blobs, clock=clock, names=CountedIds(), pictures=FinePictures())
        install(ctx)
        yield ctx


class LoopTime:
    """Monotonic seconds, moved by hand."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_failing_loop_goes_on_and_is_counted(ctx: Context, caplog: pytest.LogCaptureFixture) -> None:
    answers = iter([Unavailable("away"), ZeroDivisionError("a defect"), 0, 3])
    woken: list[str] = []

    def run(_: Context) -> object:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    loop, time = Loop(name="one", every_s=1.0, run=run), LoopTime()
    loops = Loops(ctx, [loop], monotonic_s=time, after_work=lambda: woken.append("woken"))
    assert [loops.run_once(loop) for _ in range(2)] == [False, False]
    assert [bool(record.exc_info) for record in caplog.records] == [False, True], "what is away is no defect"
    time.now_s += 30
    (status,) = loops.status()
    assert (status.runs, status.errors, status.errors_in_a_row) == (2, 2, 2)
    assert (status.last_success_age_s, status.last_error) == (30.0, "ZeroDivisionError: a defect")
    assert not status.late
    time.now_s += 100
    assert loops.status()[0].late
    assert [loops.run_once(loop) for _ in range(2)] == [True, True]
    (status,) = loops.status()
    assert (status.runs, status.errors, status.errors_in_a_row, status.last_success_age_s) == (4, 2, 0, 0.0)
    assert woken == ["woken"], "only work that was done wakes anybody"


def test_failing_loop_does_not_stop_other_loop(ctx: Context) -> None:
    turns = threading.Semaphore(0)

    def fail(_: Context) -> object:
        raise RuntimeError("always")

    def work(_: Context) -> object:
        turns.release()
        return None

    loops = Loops(ctx, [Loop(name="bad", every_s=0.001, run=fail), Loop(name="good", every_s=0.001, run=work)])
    loops.start()
    assert all(turns.acquire(timeout=20) for _ in range(5))
    assert loops.stop(timeout_s=20)
    by_name = {status.name: status for status in loops.status()}
    assert by_name["bad"].errors >= 1
    assert by_name["good"].errors == 0


def test_stop_waits_for_the_turn_under_way(ctx: Context) -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def slow(_: Context) -> object:
        begun.set()
        go_on.wait(20)
        ended.set()
        return None

    loops = Loops(ctx, [Loop(name="slow", every_s=1000.0, run=slow)])
    loops.start()
    assert begun.wait(20)
    assert not loops.stop(timeout_s=0.0)
    go_on.set()
    assert loops.stop(timeout_s=20)
    assert ended.is_set()


def test_the_real_loops_run_on_an_empty_installation(ctx: Context) -> None:
    loops = Loops(ctx)
    assert all(loops.run_once(loop) for loop in DEFAULT_SCHEDULE)
    names = [
        "lapse",
        "orders",
        "sweeps",
        "bans",
        "expire",
        "reap",
        "stragglers",
        "budgets",
        "audits",
        "collect",
        "deletions",
        "retention",
    ]
    assert [status.name for status in loops.status()] == names


def test_loop_pause_doubles_after_each_error_up_to_longest() -> None:
    quick, slow = Loop(name="a", every_s=0.5, run=print), Loop(name="b", every_s=600.0, run=print)
    assert [pause_s(quick, errors_in_a_row=count) for count in (0, 1, 2, 3, 99)] == [
        0.5,
        1.0,
        2.0,
        4.0,
        LONGEST_PAUSE_S,
    ]
    assert [pause_s(slow, errors_in_a_row=count) for count in (0, 1, 99)] == [600.0, 1.0, LONGEST_PAUSE_S]


def test_last_change_of_a_loop_stays_while_the_loop_has_nothing_to_do(ctx: Context) -> None:
    answers = iter([0, "two are gone", 0, "", "x" * 1000])
    loop, time = Loop(name="one", every_s=1.0, run=lambda _: next(answers)), LoopTime()
    loops = Loops(ctx, [loop], monotonic_s=time)
    loops.run_once(loop)
    assert (loops.status()[0].last_done, loops.status()[0].last_done_age_s) == ("", None)
    for _ in range(3):
        loops.run_once(loop)
        time.now_s += 10
    assert (loops.status()[0].last_done, loops.status()[0].last_done_age_s) == ("two are gone", 30.0)
    loops.run_once(loop)
    assert loops.status()[0].last_done == "x" * LONGEST_DONE


def test_loop_of_fleet_time_runs_on_an_empty_installation_and_wakes_nobody(ctx: Context) -> None:
    woken: list[str] = []
    loops = Loops(ctx, [FLEET_TIME_LOOP], after_work=lambda: woken.append("woken"))
    assert loops.run_once(FLEET_TIME_LOOP)
    assert (loops.status()[0].name, loops.status()[0].vital, woken) == ("fleet-time", False, [])


class TakenStore:
    """A store on which another server runs every loop."""

    def only_here(self, _name: str) -> AbstractContextManager[bool]:
        return nullcontext(False)


def test_loop_of_each_server_runs_while_another_server_runs_it_too(ctx: Context) -> None:
    ran: list[str] = []
    one = Loop(name="one", every_s=1.0, run=lambda _: ran.append("one"))
    each = Loop(name="each", every_s=1.0, run=lambda _: ran.append("each"), on_each_server=True)
    loops = Loops(replace(ctx, store=TakenStore()), [one, each])  # type: ignore[arg-type]
    assert loops.run_once(one)
    assert loops.run_once(each)
    assert ran == ["each"]
    assert REQUEST_COUNTS_LOOP.on_each_server
