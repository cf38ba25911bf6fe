"""A lock that serves its waiters in the order in which they came."""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from giornata.domain.errors import Unavailable


class FairLock:
    """First come, first served.

    SQLite lets writers race for its lock, and at 16 writers the unlucky one waits for seconds
    (docs/benchmarks.md); `threading.Lock` promises no order either.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._turns: deque[threading.Lock] = deque()
        self._owner: int | None = None  # thread id; 0 while the lock is handed from one to the next

    @contextmanager
    def held(self, *, timeout_s: float) -> Iterator[None]:
        """Hold the lock. Raises Unavailable when it was not ours within `timeout_s`."""
        self._acquire(timeout_s)
        try:
            yield
        finally:
            self._release()

    @property
    def waiting(self) -> int:
        """How many threads stand in the queue."""
        with self._guard:
            return len(self._turns)

    def _acquire(self, timeout_s: float) -> None:
        me = threading.get_ident()
        with self._guard:
            if self._owner is None:
                self._owner = me
                return
            if self._owner == me:
                raise RuntimeError("a write transaction inside a write transaction")
            turn = threading.Lock()
            turn.acquire()
            self._turns.append(turn)
        if not turn.acquire(timeout=timeout_s) and not self._handed_over_late(turn):
            raise Unavailable(f"no write could begin within {timeout_s:g} s: too many are waiting")
        self._owner = me

    def _handed_over_late(self, turn: threading.Lock) -> bool:
        """Leave the queue; True when our turn came between the time-out and now."""
        with self._guard:
            if turn in self._turns:
                self._turns.remove(turn)
                return False
            return True

    def _release(self) -> None:
        with self._guard:
            if self._turns:
                self._owner = 0
                self._turns.popleft().release()
            else:
                self._owner = None
