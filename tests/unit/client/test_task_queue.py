"""Tasks that a thread does one after the other, and calls that are repeated."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from giornata.client.retry import QueuedTask, TaskQueue, persist
from giornata.domain.errors import InvalidInput, Unavailable

AT_ONCE_S = 20.0


@pytest.fixture
def queue() -> Iterator[TaskQueue]:
    made = TaskQueue("test")
    made.start()
    yield made
    made.stop(wait_s=AT_ONCE_S)


class Tasks:
    """Makes tasks that note what became of them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.done, self.errors = folder, list[str](), dict[str, Exception]()

    def task(self, what: str, run: Callable[[], object] | None = None, replaces: str = "") -> QueuedTask:
        path = self.folder / what
        path.write_bytes(b"x")

        def ended(error: Exception | None) -> None:
            self.done.append(what)
            if error is not None:
                self.errors[what] = error

        return QueuedTask(
            what=what, run=lambda: run() and None if run else None, ended=ended, path=path, replaces=replaces
        )


@pytest.fixture
def tasks(tmp_path: Path) -> Tasks:
    return Tasks(tmp_path)


def test_tasks_are_done_in_their_order_and_their_files_are_deleted(queue: TaskQueue, tasks: Tasks) -> None:
    for number in range(3):
        queue.put(tasks.task(str(number)))
    assert queue.wait_idle(AT_ONCE_S)
    assert tasks.done == ["0", "1", "2"]
    assert list(tasks.folder.iterdir()) == []


def test_a_newer_task_takes_the_place_of_one_that_waits(queue: TaskQueue, tasks: Tasks) -> None:
    go = threading.Event()
    queue.put(tasks.task("first", lambda: go.wait(AT_ONCE_S)))
    for step, replaces in ((10, "checkpoint"), (20, ""), (30, "checkpoint")):
        queue.put(tasks.task(str(step), replaces=replaces))
    assert queue.will_replace("checkpoint")
    assert queue.pending()[-2:] == ("20", "30")
    go.set()
    assert queue.wait_idle(AT_ONCE_S)
    assert tasks.done == ["first", "20", "30"]
    assert list(tasks.folder.iterdir()) == []


def test_a_task_that_fails_for_whatever_reason_is_told_and_the_next_is_done(queue: TaskQueue, tasks: Tasks) -> None:
    queue.put(tasks.task("bug", lambda: 1 / 0))
    queue.put(tasks.task("next"))
    assert queue.wait_idle(AT_ONCE_S)
    assert tasks.done == ["bug", "next"]
    assert isinstance(tasks.errors["bug"], ZeroDivisionError)


def test_a_stopped_queue_begins_no_task(queue: TaskQueue, tasks: Tasks) -> None:
    began, go = threading.Event(), threading.Event()
    queue.put(tasks.task("first", lambda: (began.set(), go.wait(AT_ONCE_S))))
    queue.put(tasks.task("second"))
    assert began.wait(AT_ONCE_S)
    assert not queue.wait_idle(0.0)
    queue.stop(wait_s=0.0)
    go.set()
    assert queue.wait_idle(AT_ONCE_S)
    assert tasks.done == ["first"]


def test_a_call_is_repeated_while_delays_are_left() -> None:
    slept: list[float] = []

    def away() -> None:
        raise Unavailable("away")

    with pytest.raises(Unavailable):
        persist(away, delays=iter([1.0, 2.0]), sleep=slept.append, monotonic_s=lambda: 0.0)
    assert slept == [1.0, 2.0]


def test_a_call_that_is_refused_is_not_repeated() -> None:
    def refused() -> None:
        raise InvalidInput([])

    with pytest.raises(InvalidInput):
        persist(refused, delays=iter([1.0]), sleep=lambda _: pytest.fail("slept"), monotonic_s=lambda: 0.0)
