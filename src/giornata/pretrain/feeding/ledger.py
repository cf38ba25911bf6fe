"""What was trained: every (portion, row) of a phase, and nothing twice.

A ledger lies in the same checkpoint as the weights that those rows made. Whoever starts again, with however many
trainers, reads what is missing from it; see giornata.pretrain.feeding.rows_of_phase for portions.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Self

from giornata.pretrain.data.intervals import Intervals
from giornata.pretrain.feeding.rows_of_phase import Portion, RowsOfPhase

Use = tuple[int, int]
"""(portion, row): one row in one epoch."""


class TrainedTwice(RuntimeError):
    """A row was brought to the trainers again although the ledger has it: the weights would no longer be sound."""


class Ledger:
    """Of one phase. Grows by `record`; finished portions take no room of their own."""

    def __init__(self, rows_of: RowsOfPhase) -> None:
        self._sizes = {portion.number: len(portion.rows) for portion in rows_of.portions()}
        self.rows_of = rows_of
        self._finished = Intervals()
        self._partial: dict[int, Intervals] = {}
        self._quarantined: dict[int, Intervals] = {}

    def record(self, trained: Iterable[Use], *, quarantined: Iterable[Use] = ()) -> None:
        """Add rows that were trained, and rows that were drawn and could not be read: these are not asked for again.

        Raises TrainedTwice, and then adds nothing.
        """
        new, bad = _by_portion(trained), _by_portion(quarantined)
        both = {number: [*new.get(number, ()), *bad.get(number, ())] for number in {**new, **bad}}
        self._refuse_repeats(both)
        for number, rows in both.items():
            self._add(number, Intervals.of(rows))
        for number, rows in bad.items():
            self._quarantined[number] = self._quarantined.get(number, Intervals()) | Intervals.of(rows)

    def _refuse_repeats(self, new: Mapping[int, list[int]]) -> None:
        for number, rows in new.items():
            if number not in self._sizes:
                raise TrainedTwice(f"portion {number} is not of this phase")
            known = self._partial.get(number, Intervals())
            again = sorted(row for row in set(rows) if row in known)
            if number in self._finished or len(set(rows)) < len(rows) or again:
                raise TrainedTwice(f"rows {again or sorted(rows)} of portion {number} were trained before")

    def _add(self, number: int, rows: Intervals) -> None:
        done = self._partial.pop(number, Intervals()) | rows
        if len(done) == self._sizes[number]:
            self._finished |= Intervals.span(number, number + 1)
        else:
            self._partial[number] = done

    def remaining(self) -> Iterator[Portion]:
        """What is still to be trained, in order."""
        for portion in self.rows_of.portions():
            if portion.number in self._finished:
                continue
            left = portion.rows - self._partial.get(portion.number, Intervals())
            yield replace(portion, rows=left)

    @property
    def done(self) -> int:
        """Uses of rows that are recorded, quarantined ones included."""
        whole = sum(self._sizes.get(number, 0) for number in self._finished)
        return whole + sum(len(rows) for rows in self._partial.values())

    @property
    def quarantined(self) -> int:
        """How many of these could not be read."""
        return sum(len(rows) for rows in self._quarantined.values())

    @property
    def complete(self) -> bool:
        """Whether nothing remains."""
        return self.done == self.rows_of.samples

    def uses(self) -> Iterator[tuple[int, int, int]]:
        """(epoch, shard, row) of everything trained, quarantined rows left out: for the proof."""
        for portion in self.rows_of.portions():
            finished = portion.number in self._finished
            done = portion.rows if finished else self._partial.get(portion.number, Intervals())
            for row in done - self._quarantined.get(portion.number, Intervals()):
                yield portion.epoch, portion.shard, row

    def to_json(self) -> dict[str, Any]:
        """As it lies in a checkpoint."""
        return {
            "finished": self._finished.spans,
            "partial": {str(number): rows.spans for number, rows in sorted(self._partial.items())},
            "quarantined": {str(number): rows.spans for number, rows in sorted(self._quarantined.items())},
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any], rows_of: RowsOfPhase) -> Self:
        """Back from a checkpoint."""
        ledger = cls(rows_of)
        ledger._finished = _spans(values["finished"])
        ledger._partial = {int(number): _spans(spans) for number, spans in values["partial"].items()}
        ledger._quarantined = {int(number): _spans(spans) for number, spans in values["quarantined"].items()}
        return ledger


def _spans(values: Iterable[Iterable[int]]) -> Intervals:
    return Intervals(tuple((start, stop) for start, stop in values))


def _by_portion(uses: Iterable[Use]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for number, row in uses:
        found.setdefault(number, []).append(row)
    return found
