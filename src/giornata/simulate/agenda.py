"""Virtual time: what is to happen, in order, and the clock that jumps from one to the next."""

import heapq
import itertools
from collections.abc import Callable

# 2026-09-21; any day would do.
START_MS = 1_790_000_000_000

Act = Callable[[], None]


class Agenda:
    """A discrete-event loop that is also the clock of everything in the simulation.

    What is due at one instant happens in the order of `order`, then in the order in which it was put down.
    """

    def __init__(self, start_ms: int = START_MS) -> None:
        self.start_ms = self._now_ms = start_ms
        self._numbers = itertools.count()
        self._due: list[tuple[int, int, int, Act]] = []
        self.done = 0  # things that happened

    def now_ms(self) -> int:
        """Epoch milliseconds of the virtual clock."""
        return self._now_ms

    def elapsed_s(self) -> float:
        """Simulated seconds since the beginning of the run."""
        return (self._now_ms - self.start_ms) / 1000

    def at(self, at_ms: int, act: Act, *, order: int = 0) -> None:
        """Put something down; what lies in the past is due at once."""
        heapq.heappush(self._due, (max(at_ms, self._now_ms), order, next(self._numbers), act))

    def after(self, seconds: float, act: Act, *, order: int = 0) -> None:
        """Schedule a call as `at` does, counted from now."""
        self.at(self._now_ms + max(0, round(seconds * 1000)), act, order=order)

    def run(self, *, until: Callable[[], bool], latest_ms: int) -> bool:
        """Let things happen until `until` says so; False when `latest_ms` came first, or nothing was left to do."""
        while self._due:
            at_ms, _, _, act = self._due[0]
            if at_ms > latest_ms:
                return False
            heapq.heappop(self._due)
            self._now_ms = at_ms
            self.done += 1
            act()
            if until():
                return True
        return False
