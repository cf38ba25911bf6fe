"""Sets of whole numbers as sorted, disjoint, half-open intervals: small where numbers lie together."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Intervals:
    """Immutable. `spans` are (start, stop), sorted, with a gap between any two."""

    spans: tuple[tuple[int, int], ...] = ()

    @classmethod
    def span(cls, start: int, stop: int) -> Self:
        """start … stop - 1."""
        return cls(((start, stop),)) if start < stop else cls()

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Self:
        """Of single numbers, in any order."""
        return cls._joined((number, number + 1) for number in sorted(set(numbers)))

    @classmethod
    def _joined(cls, spans: Iterable[tuple[int, int]]) -> Self:
        joined: list[tuple[int, int]] = []
        for start, stop in spans:
            if joined and start <= joined[-1][1]:
                joined[-1] = joined[-1][0], max(stop, joined[-1][1])
            else:
                joined.append((start, stop))
        return cls(tuple(joined))

    def __len__(self) -> int:
        return sum(stop - start for start, stop in self.spans)

    def __bool__(self) -> bool:
        return bool(self.spans)

    def __iter__(self) -> Iterator[int]:
        for start, stop in self.spans:
            yield from range(start, stop)

    def __contains__(self, number: int) -> bool:
        place = bisect_right(self.spans, (number, float("inf"))) - 1
        return place >= 0 and number < self.spans[place][1]

    def __or__(self, other: Self) -> Self:
        return self._joined(sorted((*self.spans, *other.spans)))

    def __sub__(self, other: Self) -> Self:
        left: list[tuple[int, int]] = []
        for start, stop in self.spans:
            at = start
            for other_start, other_stop in other.spans:
                if other_stop <= at or other_start >= stop:
                    continue
                if at < other_start:
                    left.append((at, other_start))
                at = other_stop
            if at < stop:
                left.append((at, stop))
        return type(self)(tuple(left))

    def __and__(self, other: Self) -> Self:
        return self - (self - other)
