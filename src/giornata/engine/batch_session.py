"""Attempts that wait for the engine, and those that one workload carries out at the same time."""

import threading
from collections import deque
from collections.abc import Callable

from giornata.engine.assignment import Assignment
from giornata.protocol.node.pipe import Start
from giornata.workloads.interface import Outcome, Reporter

End = Outcome | Exception

Free = tuple[int, tuple[str, ...]]
"""The number of attempts that could join, and the ids of those that are there already."""

NOBODY: Free = (0, ())


class EngineBatchSession:
    """The engine's implementation of `giornata.workloads.interface.BatchSession`.

    `take` gives the next attempt that fits, if one waits. `report` tells the agent of an end and says whether the
    process may go on. `say` tells the agent how many more could join.
    """

    def __init__(
        self,
        first: Assignment,
        *,
        take: Callable[[], Assignment | None],
        report: Callable[[Assignment, End], bool],
        say: Callable[[Free], None],
    ) -> None:
        self._first: Assignment | None = first
        self._take, self._report, self._say = take, report, say
        self._at_work: dict[str, Assignment] = {}
        self._places = 0
        self._said = NOBODY
        self.healthy = True

    def next(self) -> tuple[Start, Reporter] | None:
        """Return another attempt that may join, or None."""
        found, self._first = self._first or self._take(), None
        if found is None:
            return None
        self._at_work[found.start.attempt] = found
        self._say_free()
        return found.start, found

    def ended(self, start: Start, end: End) -> None:
        """Report the end of one attempt. Raises KeyError for one that is not in the session or has ended already."""
        self.healthy = self._report(self._at_work.pop(start.attempt), end) and self.healthy
        self._say_free()

    def offer(self, places: int) -> None:
        """Allow so many attempts at once from now on."""
        self._places = places
        self._say_free()

    def left(self) -> list[Assignment]:
        """Return the attempts that have not ended, a first one that was never taken included. No other may join."""
        found = [*self._at_work.values(), *([self._first] if self._first is not None else [])]
        self._at_work, self._first = {}, None
        self._say_free()
        return found

    def _say_free(self) -> None:
        """Tell how many attempts may join. Without a running attempt there are none: the next one begins anew."""
        there = tuple(self._at_work)
        free = (max(0, self._places - len(there)), there) if there and self._places else NOBODY
        if free != self._said:
            self._said = free
            self._say(free)


class WaitingAttempts:
    """A queue whose head can be read without removal. None marks its end: nothing is taken from behind it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._line: deque[Assignment | None] = deque()

    def __len__(self) -> int:
        with self._changed:
            return len(self._line)

    def put(self, assignment: Assignment | None) -> None:
        """Append an attempt; None marks the end."""
        with self._changed:
            self._line.append(assignment)
            self._changed.notify()

    def get(self) -> Assignment | None:
        """Return the head of the queue, and wait for one."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._line))
            return self._line.popleft()

    def remove(self, assignment: Assignment) -> bool:
        """Remove an attempt from anywhere in the queue. Returns False when it is not there any more."""
        with self._changed:
            if assignment not in self._line:
                return False
            self._line.remove(assignment)
            return True

    def take(self, fits: Callable[[Assignment], bool]) -> Assignment | None:
        """Return the head if it fits. No attempt overtakes another: one that does not fit must not wait for ever
        while others come and go."""
        with self._changed:
            head = self._line[0] if self._line else None
            if head is None or not fits(head):
                return None
            return self._line.popleft()
