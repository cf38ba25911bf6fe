"""Several attempts at once in one engine, driven through a pipe with small workloads."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.unit.engine.pipe_driver import PATIENCE_S, PipeDriver

from giornata.domain.errors import WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.engine.engine import EXIT_DEVICE_BROKEN
from giornata.protocol.node.pipe import (
    Done,
    Failed,
    FreePlaces,
    Log,
    Progress,
    ResumePoint,
    Shutdown,
    Start,
    Stop,
    StoppedMessage,
)
from giornata.workloads.interface import AgentRequest, BatchSession, Outcome, Reporter, Stopped

Body = Callable[[BatchSession], None]


class FunctionWorkload:
    """A joint workload whose `run_many` is a function. Directories named alike may run together; `x` runs alone."""

    def __init__(self, body: Body, places: int = 4) -> None:
        self.body, self.places = body, places
        self.alone: list[str] = []

    def run(self, start: Start, reporter: Reporter) -> Outcome:
        self.alone.append(start.attempt)
        return Outcome(step=1, summary={"alone": True})

    def held(self) -> tuple[str, ...]:
        return ()

    def joins(self, start: Start) -> str | None:
        return None if start.directory.name == "x" else start.directory.name

    def run_many(self, session: BatchSession) -> None:
        self.body(session)


@contextmanager
def engine(workload: FunctionWorkload) -> Iterator[PipeDriver]:
    driver = PipeDriver({"x-test": workload})
    try:
        yield driver
    finally:
        driver.close()


def wait_for_next(session: BatchSession) -> tuple[Start, Reporter]:
    while (found := session.next()) is None:
        pass
    return found


def done(step: int = 1) -> Outcome:
    return Outcome(step=step, summary={})


def test_attempts_join_and_leave_and_each_is_addressed_by_its_id(tmp_path: Path) -> None:
    def body(session: BatchSession) -> None:
        one, hears_one = wait_for_next(session)
        hears_one.progress(1, 9, {})
        two, hears_two = wait_for_next(session)
        hears_two.progress(1, 9, {})
        while hears_two.agent_request() is not AgentRequest.CHECKPOINT_AND_STOP:
            assert hears_one.agent_request() is AgentRequest.GO_ON
        hears_two.checkpoint(5, tmp_path / "c", 0.0)
        session.ended(two, Stopped())
        session.ended(one, done(9))

    with engine(FunctionWorkload(body)) as driver:
        driver.start(tmp_path / "a", attempt="att_1", key="k")
        assert driver.hear(Progress).attempt == "att_1"
        driver.start(tmp_path / "a", attempt="att_2", key="k")
        assert driver.hear(Progress).attempt == "att_2"
        driver.tell(Stop(attempt="att_2", checkpoint=True))
        stopped = driver.hear(StoppedMessage)
        assert (stopped.attempt, stopped.step) == ("att_2", 5)
        assert driver.hear(Done).attempt == "att_1"


def test_queued_attempt_does_not_overtake_one_that_does_not_fit_the_batch(tmp_path: Path) -> None:
    """Behind one that does not fit, one that would has to wait; they come when the first group is done."""
    everybody_is_there = threading.Event()

    def body(session: BatchSession) -> None:
        start, _ = wait_for_next(session)
        everybody_is_there.wait(PATIENCE_S)
        assert session.next() is None
        session.ended(start, done())

    workload = FunctionWorkload(body)
    with engine(workload) as driver:
        for attempt, group in (("att_1", "a"), ("att_2", "b"), ("att_3", "a"), ("att_4", "x")):
            driver.start(tmp_path / group, attempt=attempt, key="k")
        driver.tell(Stop(attempt="nobody", checkpoint=False))
        while driver.waiting() < 3:
            pass
        everybody_is_there.set()
        assert [driver.hear(Done).attempt for _ in range(4)] == ["att_1", "att_2", "att_3", "att_4"]
    assert workload.alone == ["att_4"]


def test_failed_batch_member_does_not_end_other_members(tmp_path: Path) -> None:
    def body(session: BatchSession) -> None:
        one, _ = wait_for_next(session)
        two, _ = wait_for_next(session)
        session.ended(one, WorkloadFailed(Reason.BAD_DATA, "a bad picture"))
        session.ended(two, done())

    with engine(FunctionWorkload(body)) as driver:
        driver.start(tmp_path / "a", attempt="att_1", key="k")
        driver.start(tmp_path / "a", attempt="att_2", key="k")
        failed = driver.hear(Failed)
        assert (failed.attempt, failed.reason, failed.together) == ("att_1", Reason.BAD_DATA, ())
        assert driver.hear(Done).attempt == "att_2"


def test_batch_failure_ends_all_current_members_and_names_them(tmp_path: Path) -> None:
    def body(session: BatchSession) -> None:
        over, _ = wait_for_next(session)
        wait_for_next(session)
        wait_for_next(session)
        session.ended(over, done())
        raise WorkloadFailed(Reason.NODE_DRIVER, "CUDA error")

    with engine(FunctionWorkload(body)) as driver:
        for attempt in ("att_1", "att_2", "att_3"):
            driver.start(tmp_path / "a", attempt=attempt, key="k")
        assert driver.hear(Done).attempt == "att_1"
        failures = [driver.hear(Failed), driver.hear(Failed)]
        assert [each.attempt for each in failures] == ["att_2", "att_3"]
        assert {each.together for each in failures} == {("att_2", "att_3")}
        assert driver.join() == EXIT_DEVICE_BROKEN


def test_an_attempt_without_an_end_is_a_crash_and_not_lost(tmp_path: Path) -> None:
    def body(session: BatchSession) -> None:
        wait_for_next(session)

    with engine(FunctionWorkload(body)) as driver:
        driver.start(tmp_path / "a", attempt="att_1", key="k")
        assert driver.hear(Failed).reason is Reason.CRASHED
        driver.tell(Shutdown())
        assert driver.join() == 0


def test_engine_with_one_place_runs_attempt_alone(tmp_path: Path) -> None:
    def body(session: BatchSession) -> None:
        raise AssertionError

    workload = FunctionWorkload(body, places=1)
    with engine(workload) as driver:
        driver.start(tmp_path / "a", attempt="att_1", key="k")
        assert driver.hear(Done).summary == {"alone": True}


def test_the_agent_is_told_how_many_more_could_come_and_who_is_there(tmp_path: Path) -> None:
    go_on = threading.Event()

    def body(session: BatchSession) -> None:
        one, _ = wait_for_next(session)
        session.offer(3)
        two, _ = wait_for_next(session)
        session.ended(one, done())
        go_on.wait(PATIENCE_S)
        session.ended(two, done())

    with engine(FunctionWorkload(body)) as driver:
        driver.start(tmp_path / "a", attempt="att_1", key="k")
        first = driver.hear(FreePlaces)
        assert (first.key, first.free, first.attempts) == ("k", 2, ("att_1",))
        driver.start(tmp_path / "a", attempt="att_2", key="k")
        second = driver.hear(FreePlaces)
        assert (second.free, second.attempts) == (1, ("att_1", "att_2"))
        third = driver.hear(FreePlaces)
        assert (third.free, third.attempts) == (2, ("att_2",))
        go_on.set()
        last = driver.hear(FreePlaces)
        assert (last.key, last.free, last.attempts) == ("k", 0, ())


def test_failed_batch_reports_no_free_places(tmp_path: Path) -> None:
    def body(session: BatchSession) -> None:
        wait_for_next(session)
        session.offer(3)
        raise WorkloadFailed(Reason.NODE_VRAM, "out of memory")

    with engine(FunctionWorkload(body)) as driver:
        driver.start(tmp_path / "a", attempt="att_1", key="k")
        assert driver.hear(FreePlaces).free == 2
        assert driver.hear(FreePlaces).free == 0
        assert driver.hear(Failed).attempt == "att_1"


def test_an_attempt_without_a_key_runs_alone_whatever_the_workload_could_do(tmp_path: Path) -> None:
    """It may have been in an engine that died, with others: whose fault that was shows when it is alone."""

    def body(session: BatchSession) -> None:
        raise AssertionError

    workload = FunctionWorkload(body)
    with engine(workload) as driver:
        driver.start(tmp_path / "a", attempt="att_1")
        assert driver.hear(Done).summary == {"alone": True}


def test_attempts_of_other_keys_do_not_meet(tmp_path: Path) -> None:
    everybody_is_there = threading.Event()

    def body(session: BatchSession) -> None:
        start, _ = wait_for_next(session)
        everybody_is_there.wait(PATIENCE_S)
        assert session.next() is None
        session.ended(start, done())

    with engine(FunctionWorkload(body)) as driver:
        driver.start(tmp_path / "a", attempt="att_1", key="k")
        driver.start(tmp_path / "a", attempt="att_2", key="another")
        while driver.waiting() < 1:
            pass
        everybody_is_there.set()
        assert [driver.hear(Done).attempt for _ in range(2)] == ["att_1", "att_2"]


def test_stop_of_queued_attempt_takes_effect_at_once(tmp_path: Path) -> None:
    go_on = threading.Event()

    def body(session: BatchSession) -> None:
        start, _ = wait_for_next(session)
        go_on.wait(PATIENCE_S)
        session.ended(start, done())

    workload = FunctionWorkload(body)
    with engine(workload) as driver:
        driver.start(tmp_path / "a", attempt="att_1", key="k")
        resume = ResumePoint(step=7, path=tmp_path / "c")
        driver.tell(Start(attempt="att_2", job="j", kind="x-test", spec={}, directory=tmp_path, resume=resume))
        driver.tell(Stop(attempt="att_2", checkpoint=True))
        stopped = driver.hear(StoppedMessage)
        assert (stopped.attempt, stopped.step) == ("att_2", 7)
        go_on.set()
        assert driver.hear(Done).attempt == "att_1"
        driver.tell(Shutdown())
        assert driver.join() == 0
    assert workload.alone == []


def test_traceback_of_one_batch_member_is_not_printed_to_shared_stderr(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Standard error goes into the logs of all that are in the engine; a trace may quote what is one project's."""

    def body(session: BatchSession) -> None:
        one, _ = wait_for_next(session)
        two, _ = wait_for_next(session)
        session.ended(one, RuntimeError("my private picture"))
        session.ended(two, RuntimeError("nobody else is here"))

    with engine(FunctionWorkload(body)) as driver:
        driver.start(tmp_path / "a", attempt="att_1", key="k")
        driver.start(tmp_path / "a", attempt="att_2", key="k")
        traced = driver.hear(Log)
        assert traced.attempt == "att_1"
        driver.hear(Failed)
        driver.hear(Failed)
        driver.tell(Shutdown())
        driver.join()
    printed = capfd.readouterr().err
    assert "my private picture" not in printed
    assert "nobody else is here" in printed
