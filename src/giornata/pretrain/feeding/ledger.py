"""The ledger of a phase: every (portion, row) that was trained, each once.

A ledger lies in the same checkpoint as the weights that its rows made. After a restart, with any number of trainers,
the ledger tells which rows remain. Portions: giornata.pretrain.feeding.rows_of_phase. The first trainer keeps the
ledger; the others send it their uses as bitmaps.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Self

import numpy as np

from giornata.pretrain.feeding.rows_of_phase import NumberSet, Portion, RowsOfPhase

Use = tuple[int, int]
"""(portion, row): one row in one epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UseBits:
    """Uses as a bitmap for each portion. `repeated` are uses that were given more than once."""

    portions: Mapping[int, NumberSet]
    repeated: tuple[Use, ...] = ()

    @classmethod
    def of(cls, uses: Iterable[Use]) -> Self:
        pairs = np.fromiter(chain.from_iterable(uses), np.int64).reshape(-1, 2)
        pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
        numbers, firsts = np.unique(pairs[:, 0], return_index=True)
        portions, repeated = dict[int, NumberSet](), list[Use]()
        for number, rows in zip(numbers.tolist(), np.split(pairs[:, 1], firsts[1:]), strict=False):
            portions[number] = NumberSet.of(rows)
            if len(portions[number]) < len(rows):
                found, times = np.unique(rows, return_counts=True)
                repeated += [(number, row) for row in found[times > 1].tolist()]
        return cls(portions=portions, repeated=tuple(repeated))


class TrainedTwice(RuntimeError):
    """A trainer received a row that the ledger has: the weights would no longer be sound."""


class UseLedger:
    """The ledger of one phase. It grows by `record`."""

    def __init__(self, rows_of: RowsOfPhase) -> None:
        self._sizes = {portion.number: len(portion.rows) for portion in rows_of.portions()}
        self.rows_of = rows_of
        self._finished = set[int]()
        self._partial: dict[int, NumberSet] = {}
        self._quarantined: dict[int, NumberSet] = {}

    def record(self, trained: UseBits | Iterable[Use], *, quarantined: UseBits | Iterable[Use] = ()) -> None:
        """Add trained rows, and unreadable ones, which are not asked for again.

        Raises TrainedTwice, and then adds nothing.
        """
        new, bad = (each if isinstance(each, UseBits) else UseBits.of(each) for each in (trained, quarantined))
        both, again = dict(new.portions), {*new.repeated, *bad.repeated}
        for number, rows in bad.portions.items():
            before = both.get(number, NumberSet())
            again |= {(number, row) for row in before & rows}
            both[number] = before | rows
        for number, rows in both.items():
            if number not in self._sizes:
                raise TrainedTwice(f"portion {number} is not of this phase")
            again |= {(number, row) for row in (rows if number in self._finished else rows & self._begun(number))}
        if again:
            raise TrainedTwice(f"these rows, as (portion, row), were trained before: {sorted(again)}")
        for number, rows in both.items():
            done = self._begun(number) | rows
            if len(done) == self._sizes[number]:
                self._partial.pop(number, None)
                self._finished.add(number)
            else:
                self._partial[number] = done
        for number, rows in bad.portions.items():
            self._quarantined[number] = self._quarantined.get(number, NumberSet()) | rows

    def _begun(self, number: int) -> NumberSet:
        return self._partial.get(number, NumberSet())

    def remaining(self) -> Iterator[Portion]:
        """The portions still to train, in order."""
        for portion in self.rows_of.portions():
            if portion.number not in self._finished:
                yield replace(portion, rows=portion.rows - self._begun(portion.number))

    @property
    def done(self) -> int:
        """The number of recorded uses, unreadable rows included."""
        whole = sum(self._sizes.get(number, 0) for number in self._finished)
        return whole + sum(map(len, self._partial.values()))

    @property
    def quarantined(self) -> int:
        """The number of recorded uses that could not be read."""
        return sum(len(rows) for rows in self._quarantined.values())

    @property
    def complete(self) -> bool:
        return self.done == self.rows_of.samples

    def to_json(self) -> dict[str, Any]:
        return {
            "finished": NumberSet.of(self._finished).spans,
            "partial": {str(number): rows.spans for number, rows in sorted(self._partial.items())},
            "quarantined": {str(number): rows.spans for number, rows in sorted(self._quarantined.items())},
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any], rows_of: RowsOfPhase) -> Self:
        ledger = cls(rows_of)
        ledger._finished = set(NumberSet.of_spans(values["finished"]))
        ledger._partial = {int(number): NumberSet.of_spans(spans) for number, spans in values["partial"].items()}
        ledger._quarantined = {
            int(number): NumberSet.of_spans(spans) for number, spans in values["quarantined"].items()
        }
        return ledger
