"""Calls that are repeated, and tasks that a thread does one after the other.

Nodes, standalone runs and webhooks share this file, so that there is one way to wait and one way to give up.
"""

import collections
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from giornata.domain.errors import GiornataError

T = TypeVar("T")

Monotonic = Callable[[], float]
"""A clock in seconds that never steps back."""

Until = Callable[[], float | None]
"""The moment to give up, by the monotonic clock; None for never."""


def never() -> None:
    """Set no moment to give up."""


def delays_s(rng: random.Random, *, first_s: float = 0.5, most_s: float = 15.0) -> Iterator[float]:
    """Delays in seconds that double up to `most_s`, each between half and the whole of its bound.

    The jitter keeps a thousand nodes, all cut off at the same moment, from coming back at the same moment.
    """
    bound_s = first_s
    while True:
        yield rng.uniform(bound_s / 2, bound_s)
        bound_s = min(most_s, bound_s * 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """The number and length of retries: pauses as of `delays_s`, for callers that count failures themselves.

    `sleep` and `chance` (0 to 1) are arguments so that tests need not wait.
    """

    retries: int = 7
    first_s: float = 0.25
    most_s: float = 8.0
    sleep: Callable[[float], None] = time.sleep
    chance: Callable[[], float] = random.random

    def pause(self, failures: int, *, at_least_s: float = 0.0) -> None:
        """Wait after the n-th failure in a row (n counts from 1)."""
        whole_s = min(self.most_s, self.first_s * 2.0 ** (failures - 1))
        self.sleep(max(at_least_s, whole_s * (0.5 + 0.5 * self.chance())))


def persist(
    call: Callable[[], T],
    *,
    delays: Iterator[float],
    sleep: Callable[[float], object],
    monotonic_s: Monotonic,
    until: Until = never,
) -> T:
    """Make the call until it succeeds, is refused, or no delay is left.

    Only a retryable GiornataError leads to another try. `until` is asked anew after each failure; after the moment
    that it gives, the last error is raised.
    """
    while True:
        try:
            return call()
        except GiornataError as error:
            until_s = until()
            late = until_s is not None and monotonic_s() >= until_s
            if not error.retryable or late or (delay_s := next(delays, None)) is None:
                raise
        sleep(delay_s if until_s is None else min(delay_s, max(0.0, until_s - monotonic_s())))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedTask:
    """Work for a TaskQueue. `run` does the work, and repeats what may be repeated, by itself.

    `ended` gets what `run` raised, or None. The queue deletes the file at `path` afterwards. A task that is new takes
    the place of those that wait with the same `replaces`.
    """

    what: str
    run: Callable[[], None]
    ended: Callable[[Exception | None], None]
    path: Path | None = None
    replaces: str = ""


class TaskQueue:
    """Does tasks in their order, in a thread of its own. All methods may be called from any thread."""

    def __init__(self, name: str) -> None:
        self._changed = threading.Condition()
        self._waiting: collections.deque[QueuedTask] = collections.deque()
        self._current: QueuedTask | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread that runs the tasks."""
        self._thread.start()

    def stop(self, *, wait_s: float) -> None:
        """Begin no task any more, and wait so long for the one that runs."""
        with self._changed:
            self._stopped.set()
            self._waiting.clear()
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(wait_s)

    @property
    def is_stopped(self) -> bool:
        """True when `stop` was called. A task that runs looks at this between its tries."""
        return self._stopped.is_set()

    def sleep(self, seconds: float) -> None:
        """Wait between the tries of a task; `stop` ends the wait."""
        self._stopped.wait(seconds)

    def put(self, task: QueuedTask) -> None:
        """Add a task. Never blocks."""
        with self._changed:
            for older in [each for each in self._waiting if task.replaces and each.replaces == task.replaces]:
                self._waiting.remove(older)
                _delete_file(older)
            self._waiting.append(task)
            self._changed.notify_all()

    def will_replace(self, replaces: str) -> bool:
        """Return True when a task with this mark waits."""
        with self._changed:
            return any(each.replaces == replaces for each in self._waiting)

    def pending(self) -> tuple[str, ...]:
        """The names of the task that runs and of those that wait."""
        with self._changed:
            tasks = ([] if self._current is None else [self._current]) + list(self._waiting)
            return tuple(each.what for each in tasks)

    def is_idle(self) -> bool:
        """Return True when every task has ended."""
        with self._changed:
            return self._current is None and not self._waiting

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until every task has ended. False when that takes longer."""
        with self._changed:
            return self._changed.wait_for(self.is_idle, timeout_s)

    def _run(self) -> None:
        while (task := self._next()) is not None:
            error: Exception | None = None
            try:
                task.run()
            except Exception as raised:  # noqa: BLE001 - the supervisor of this thread: `ended` is told
                error = raised
            _delete_file(task)
            # In one step, so that an idle queue has always told what became of its tasks.
            with self._changed:
                task.ended(error)
                self._current = None
                self._changed.notify_all()

    def _next(self) -> QueuedTask | None:
        with self._changed:
            self._changed.wait_for(lambda: self.is_stopped or bool(self._waiting))
            self._current = None if self.is_stopped else self._waiting.popleft()
            return self._current


def _delete_file(task: QueuedTask) -> None:
    if task.path is not None:
        task.path.unlink(missing_ok=True)
