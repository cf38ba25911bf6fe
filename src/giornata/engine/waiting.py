"""Attempts that wait for the engine, in the order in which they came."""

import threading
from collections import deque
from collections.abc import Callable

from giornata.engine.assignment import Assignment


class Waiting:
    """A queue whose head can be looked at. None marks its end: nothing is taken from behind it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._line: deque[Assignment | None] = deque()

    def __len__(self) -> int:
        with self._changed:
            return len(self._line)

    def put(self, assignment: Assignment | None) -> None:
        """Stand in line; None for the end."""
        with self._changed:
            self._line.append(assignment)
            self._changed.notify()

    def get(self) -> Assignment | None:
        """The head; waits for one."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._line))
            return self._line.popleft()

    def remove(self, assignment: Assignment) -> bool:
        """Take one out of the line, wherever it stands. False when it does not stand there any more."""
        with self._changed:
            if assignment not in self._line:
                return False
            self._line.remove(assignment)
            return True

    def take(self, fits: Callable[[Assignment], bool]) -> Assignment | None:
        """The head, if there is one and it fits. Nobody jumps the queue: whoever does not fit must not wait for ever
        while others come and go."""
        with self._changed:
            head = self._line[0] if self._line else None
            if head is None or not fits(head):
                return None
            return self._line.popleft()
