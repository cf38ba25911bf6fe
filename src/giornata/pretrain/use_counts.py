"""How often each planned use of a row was trained, as the traces have it.

A byte of a file stands for each use, and what is held in memory does not grow with the rows: uses that follow one
another in a trace are of few portions, whose bytes lie together.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from giornata.pretrain.feeding.ledger import Use
from giornata.pretrain.feeding.rows_of_phase import RowsOfPhase
from giornata.pretrain.trace import TracedAttempt

AT_ONCE = 1 << 16
"""Uses are counted so many together."""
CHUNK_BYTES = 1 << 20
MORE_THAN_ONCE = 2
"""As far as is counted."""
_ROW_BITS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Planned uses that were trained `once` and `more` than once, and uses that were `undone`."""

    once: int
    more: int
    undone: int


def count_uses(
    attempts: Iterable[TracedAttempt],
    phases: Sequence[RowsOfPhase],
    *,
    until_step: int,
    folder: Path,
    at_once: int = AT_ONCE,
) -> Counted:
    """Of all attempts, up to a step; what was trained after it is not safe yet. `folder` is an empty one, for a byte
    for each planned use. Raises RuntimeError for uses that are not planned."""
    counts = {each.phase: UseCounts(each, folder / str(each.phase), at_once=at_once) for each in phases}
    undone = 0
    for attempt in attempts:
        for line in attempt.lines():
            if line["step"] > attempt.kept_until:
                undone += len(line["uses"])
            elif line["step"] <= until_step:
                if line["phase"] not in counts:
                    raise RuntimeError(f"phase {line['phase']} was trained, which is not of this run")
                counts[line["phase"]].add(line["uses"])
    ends = [each.ends() for each in counts.values()]
    return Counted(once=sum(once for once, _ in ends), more=sum(more for _, more in ends), undone=undone)


class UseCounts:
    """Of one phase, in a new file."""

    def __init__(self, rows_of: RowsOfPhase, file: Path, *, at_once: int) -> None:
        spans = [(each.number, *span) for each in rows_of.portions() for span in each.rows.spans]
        portions, starts, stops = np.array(spans, np.int64).T
        self._phase, self._at_once = rows_of.phase, at_once
        self._starts, self._stops = _numbers(portions, starts), _numbers(portions, stops)
        sizes = stops - starts
        self._first_places = np.cumsum(sizes) - sizes
        _fill(file, rows_of.samples)
        self._counts = np.memmap(file, np.uint8, "r+")
        self._waiting: list[Use] = []

    def add(self, uses: Sequence[Use]) -> None:
        """They were trained once more."""
        self._waiting += uses
        if len(self._waiting) >= self._at_once:
            self._count()

    def ends(self) -> tuple[int, int]:
        """How many were trained once, and how many more than once."""
        self._count()
        parts = range(0, len(self._counts), CHUNK_BYTES)
        found = [np.bincount(self._counts[part : part + CHUNK_BYTES], minlength=3) for part in parts]
        return sum(int(each[1]) for each in found), sum(int(each[MORE_THAN_ONCE]) for each in found)

    def _count(self) -> None:
        portions, rows = np.array(self._waiting, np.int64).reshape(-1, 2).T
        numbers = _numbers(portions, rows)
        spans = np.searchsorted(self._starts, numbers, side="right") - 1
        strange = (spans < 0) | (numbers >= self._stops[spans])
        if strange.any():
            use = self._waiting[int(strange.argmax())]
            raise RuntimeError(f"a row was trained that is not of this run: {tuple(use)} of phase {self._phase}")
        places, times = np.unique(self._first_places[spans] + numbers - self._starts[spans], return_counts=True)
        self._counts[places] = np.minimum(self._counts[places] + times, MORE_THAN_ONCE)
        self._waiting = []


def _numbers(portions: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """One for each use, in the order of portions."""
    return portions << _ROW_BITS | rows


def _fill(file: Path, size_bytes: int) -> None:
    """With zeros: a disk that is full is told here, and not by a signal later."""
    with file.open("wb") as stream:
        for done in range(0, size_bytes, CHUNK_BYTES):
            stream.write(bytes(min(CHUNK_BYTES, size_bytes - done)))
