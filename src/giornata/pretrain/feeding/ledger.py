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

from giornata.pretrain.feeding.rows_of_phase import Intervals, Portion, RowsOfPhase

Use = tuple[int, int]
"""(portion, row): one row in one epoch."""
Bits = np.ndarray
"""A bool for each row of a portion's shard, up to the last row that is set."""
_NONE: Bits = np.zeros(0, bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class UseBits:
    """Uses as a packed bitmap for each portion. `repeated` are uses that were given more than once."""

    packed: Mapping[int, bytes]
    repeated: tuple[Use, ...] = ()

    @classmethod
    def of(cls, uses: Iterable[Use]) -> Self:
        pairs = np.fromiter(chain.from_iterable(uses), np.int64).reshape(-1, 2)
        pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
        numbers, firsts = np.unique(pairs[:, 0], return_index=True)
        packed, repeated = dict[int, bytes](), list[Use]()
        for number, rows in zip(numbers.tolist(), np.split(pairs[:, 1], firsts[1:]), strict=False):
            bits = np.zeros(rows.max() + 1, bool)
            bits[rows] = True
            packed[number] = np.packbits(bits).tobytes()
            if bits.sum() < len(rows):
                found, times = np.unique(rows, return_counts=True)
                repeated += [(number, row) for row in found[times > 1].tolist()]
        return cls(packed=packed, repeated=tuple(repeated))

    def bits(self) -> dict[int, Bits]:
        return {
            number: np.unpackbits(np.frombuffer(each, np.uint8)).view(bool) for number, each in self.packed.items()
        }


class TrainedTwice(RuntimeError):
    """A trainer received a row that the ledger has: the weights would no longer be sound."""


class UseLedger:
    """The ledger of one phase. It grows by `record`; a finished portion is one number of an interval."""

    def __init__(self, rows_of: RowsOfPhase) -> None:
        self._sizes = {portion.number: len(portion.rows) for portion in rows_of.portions()}
        self.rows_of = rows_of
        self._finished = Intervals()
        self._partial: dict[int, Bits] = {}
        self._quarantined: dict[int, Intervals] = {}

    def record(self, trained: UseBits | Iterable[Use], *, quarantined: UseBits | Iterable[Use] = ()) -> None:
        """Add trained rows, and unreadable ones, which are not asked for again.

        Raises TrainedTwice, and then adds nothing.
        """
        new, bad = (each if isinstance(each, UseBits) else UseBits.of(each) for each in (trained, quarantined))
        both = new.bits()
        again = {*new.repeated, *bad.repeated}
        for number, bits in bad.bits().items():
            again |= _in_both(number, both.get(number, _NONE), bits)
            both[number] = _either(both.get(number, _NONE), bits)
        for number, bits in both.items():
            if number not in self._sizes:
                raise TrainedTwice(f"portion {number} is not of this phase")
            again |= _in_both(number, bits if number in self._finished else self._done(number), bits)
        if again:
            raise TrainedTwice(f"these rows, as (portion, row), were trained before: {sorted(again)}")
        for number, bits in both.items():
            done = _either(self._done(number), bits)
            if done.sum() == self._sizes[number]:
                self._partial.pop(number, None)
                self._finished |= Intervals.span(number, number + 1)
            else:
                self._partial[number] = done
        for number, bits in bad.bits().items():
            self._quarantined[number] = self._quarantined.get(number, Intervals()) | _intervals(bits)

    def _done(self, number: int) -> Bits:
        return self._partial.get(number, _NONE)

    def remaining(self) -> Iterator[Portion]:
        """The portions still to train, in order."""
        for portion in self.rows_of.portions():
            if portion.number not in self._finished:
                yield replace(portion, rows=portion.rows - _intervals(self._done(portion.number)))

    @property
    def done(self) -> int:
        """The number of recorded uses, unreadable rows included."""
        whole = sum(self._sizes.get(number, 0) for number in self._finished)
        return whole + sum(int(bits.sum()) for bits in self._partial.values())

    @property
    def quarantined(self) -> int:
        """The number of recorded uses that could not be read."""
        return sum(len(rows) for rows in self._quarantined.values())

    @property
    def complete(self) -> bool:
        return self.done == self.rows_of.samples

    def to_json(self) -> dict[str, Any]:
        return {
            "finished": self._finished.spans,
            "partial": {str(number): _intervals(bits).spans for number, bits in sorted(self._partial.items())},
            "quarantined": {str(number): rows.spans for number, rows in sorted(self._quarantined.items())},
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any], rows_of: RowsOfPhase) -> Self:
        ledger = cls(rows_of)
        ledger._finished = _spans(values["finished"])
        ledger._partial = {int(number): _bits(spans) for number, spans in values["partial"].items()}
        ledger._quarantined = {int(number): _spans(spans) for number, spans in values["quarantined"].items()}
        return ledger


def _spans(values: Iterable[Iterable[int]]) -> Intervals:
    return Intervals(tuple((start, stop) for start, stop in values))


def _bits(spans: Iterable[tuple[int, int]]) -> Bits:
    found = list(spans)
    bits: Bits = np.zeros(max((stop for _, stop in found), default=0), bool)
    for start, stop in found:
        bits[start:stop] = True
    return bits


def _intervals(bits: Bits) -> Intervals:
    edges = np.flatnonzero(np.diff(bits.view(np.int8), prepend=0, append=0)).tolist()
    return Intervals(tuple(zip(edges[::2], edges[1::2], strict=True)))


def _either(one: Bits, other: Bits) -> Bits:
    both: Bits = np.zeros(max(len(one), len(other)), bool)
    both[: len(one)] = one
    both[: len(other)] |= other
    return both


def _in_both(number: int, one: Bits, other: Bits) -> set[Use]:
    least = min(len(one), len(other))
    return {(number, row) for row in np.flatnonzero(one[:least] & other[:least]).tolist()}
