"""Several attempts at once in one engine, driven through a pipe with small workloads."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipe_driver import PATIENCE_S, PipeDriver

from giornata.domain.reasons import Reason
from giornata.engine.engine import EXIT_DEVICE_BROKEN
from giornata.engine.workload import Crew, Outcome, Reporter, Stopped, Wish, WorkloadFailed
from giornata.protocol.pipe import Done, Failed, Progress, Shutdown, Start, Stop
from giornata.protocol.pipe import Stopped as StoppedMessage

Body = Callable[[Crew], None]


class Together:
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

    def run_many(self, crew: Crew) -> None:
        self.body(crew)


@contextmanager
def engine(workload: Together) -> Iterator[PipeDriver]:
    driver = PipeDriver({"x-test": workload})
    try:
        yield driver
    finally:
        driver.close()


def wait_for_next(crew: Crew) -> tuple[Start, Reporter]:
    while (found := crew.next()) is None:
        pass
    return found


def done(step: int = 1) -> Outcome:
    return Outcome(step=step, summary={})


def test_attempts_join_and_leave_and_each_is_addressed_by_its_id(tmp_path: Path) -> None:
    def body(crew: Crew) -> None:
        one, hears_one = wait_for_next(crew)
        hears_one.progress(1, 9, {})
        two, hears_two = wait_for_next(crew)
        hears_two.progress(1, 9, {})
        while hears_two.wish() is not Wish.CHECKPOINT_AND_STOP:
            assert hears_one.wish() is Wish.GO_ON
        hears_two.checkpoint(5, tmp_path / "c", 0.0)
        crew.ended(two, Stopped())
        crew.ended(one, done(9))

    with engine(Together(body)) as driver:
        driver.start(tmp_path / "a", attempt="att_1")
        assert driver.hear(Progress).attempt == "att_1"
        driver.start(tmp_path / "a", attempt="att_2")
        assert driver.hear(Progress).attempt == "att_2"
        driver.tell(Stop(attempt="att_2", checkpoint=True))
        stopped = driver.hear(StoppedMessage)
        assert (stopped.attempt, stopped.step) == ("att_2", 5)
        assert driver.hear(Done).attempt == "att_1"


def test_nobody_jumps_the_queue(tmp_path: Path) -> None:
    """Behind one that does not fit, one that would has to wait; they come when the first group is done."""
    everybody_is_there = threading.Event()

    def body(crew: Crew) -> None:
        start, _ = wait_for_next(crew)
        everybody_is_there.wait(PATIENCE_S)
        assert crew.next() is None
        crew.ended(start, done())

    workload = Together(body)
    with engine(workload) as driver:
        for attempt, group in (("att_1", "a"), ("att_2", "b"), ("att_3", "a"), ("att_4", "x")):
            driver.start(tmp_path / group, attempt=attempt)
        driver.tell(Stop(attempt="att_4", checkpoint=False))
        driver.tell(Stop(attempt="nobody", checkpoint=False))
        while driver.waiting() < 3:
            pass
        everybody_is_there.set()
        assert [driver.hear(Done).attempt for _ in range(4)] == ["att_1", "att_2", "att_3", "att_4"]
    assert workload.alone == ["att_4"]


def test_one_that_fails_leaves_the_others_alone(tmp_path: Path) -> None:
    def body(crew: Crew) -> None:
        one, _ = wait_for_next(crew)
        two, _ = wait_for_next(crew)
        crew.ended(one, WorkloadFailed(Reason.BAD_DATA, "a bad picture"))
        crew.ended(two, done())

    with engine(Together(body)) as driver:
        driver.start(tmp_path / "a", attempt="att_1")
        driver.start(tmp_path / "a", attempt="att_2")
        failed = driver.hear(Failed)
        assert (failed.attempt, failed.reason, failed.together) == ("att_1", Reason.BAD_DATA, ())
        assert driver.hear(Done).attempt == "att_2"


def test_what_breaks_the_batch_ends_all_that_are_in_it_and_names_them(tmp_path: Path) -> None:
    def body(crew: Crew) -> None:
        over, _ = wait_for_next(crew)
        wait_for_next(crew)
        wait_for_next(crew)
        crew.ended(over, done())
        raise WorkloadFailed(Reason.NODE_DRIVER, "CUDA error")

    with engine(Together(body)) as driver:
        for attempt in ("att_1", "att_2", "att_3"):
            driver.start(tmp_path / "a", attempt=attempt)
        assert driver.hear(Done).attempt == "att_1"
        failures = [driver.hear(Failed), driver.hear(Failed)]
        assert [each.attempt for each in failures] == ["att_2", "att_3"]
        assert {each.together for each in failures} == {("att_2", "att_3")}
        assert driver.join() == EXIT_DEVICE_BROKEN


def test_an_attempt_without_an_end_is_a_crash_and_not_lost(tmp_path: Path) -> None:
    def body(crew: Crew) -> None:
        wait_for_next(crew)

    with engine(Together(body)) as driver:
        driver.start(tmp_path / "a", attempt="att_1")
        assert driver.hear(Failed).reason is Reason.CRASHED
        driver.tell(Shutdown())
        assert driver.join() == 0


def test_with_one_place_everybody_runs_alone(tmp_path: Path) -> None:
    def body(crew: Crew) -> None:
        raise AssertionError

    workload = Together(body, places=1)
    with engine(workload) as driver:
        driver.start(tmp_path / "a", attempt="att_1")
        assert driver.hear(Done).summary == {"alone": True}
