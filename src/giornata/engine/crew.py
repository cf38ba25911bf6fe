"""Attempts that one workload carries out at the same time."""

from collections.abc import Callable

from giornata.engine.assignment import Assignment
from giornata.engine.workload import Outcome, Reporter
from giornata.protocol.pipe import Start

End = Outcome | Exception


class EngineCrew:
    """The engine's `giornata.engine.workload.Crew`. `take` gives the next attempt that fits, if one waits; `report`
    tells the agent of an end and says whether the process may go on."""

    def __init__(
        self,
        first: Assignment,
        *,
        take: Callable[[], Assignment | None],
        report: Callable[[Assignment, End], bool],
    ) -> None:
        self._first: Assignment | None = first
        self._take, self._report = take, report
        self._at_work: dict[str, Assignment] = {}
        self.healthy = True

    def next(self) -> tuple[Start, Reporter] | None:
        """Another attempt that may join in."""
        found, self._first = self._first or self._take(), None
        if found is None:
            return None
        self._at_work[found.start.attempt] = found
        return found.start, found

    def ended(self, start: Start, end: End) -> None:
        """One of them is done. Saying so twice, or of somebody else, is a defect of the workload: KeyError."""
        self.healthy = self._report(self._at_work.pop(start.attempt), end) and self.healthy

    def left(self) -> list[Assignment]:
        """Those that have not ended, the first one included even if it was never called."""
        found = [*self._at_work.values(), *([self._first] if self._first is not None else [])]
        self._at_work, self._first = {}, None
        return found
