"""What attempts pay that live on one node at one time.

A node costs its price once, however many attempts are at work on it: at each moment those that are billed pay equal
shares. Nobody's bill depends on who came first, and a job that leaves makes it dearer for those that stay.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from giornata.domain.money import MS_PER_HOUR


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A stretch of an attempt's life that is billed. Instants are epoch milliseconds."""

    from_ms: int
    to_ms: int


def shared_cost_micro_usd(interval: Interval, beside: Iterable[Sequence[Interval]], *, price_per_hour: int) -> int:
    """What the interval costs at an hourly price in micro-dollars, rounded half up to a micro-dollar.

    `beside` are the lives of the attempts on the same node, each one's intervals; those of one do not overlap.
    The shares of all of them add up to the price of the time in which any of them is billed, to half a micro-dollar
    for each interval. With nobody beside it, it is `domain.money.cost_micro_usd`.
    """
    inside = [part for life in beside for part in _within(interval, life)]
    changes = sorted(
        {interval.from_ms, interval.to_ms, *(at for part in inside for at in (part.from_ms, part.to_ms))}
    )
    share_ms = Fraction(0)
    for from_ms, to_ms in pairwise(changes):
        there = 1 + sum(part.from_ms <= from_ms and to_ms <= part.to_ms for part in inside)
        share_ms += Fraction(to_ms - from_ms, there)
    return int((price_per_hour * share_ms + Fraction(MS_PER_HOUR, 2)) // MS_PER_HOUR)


def _within(whole: Interval, life: Sequence[Interval]) -> Iterable[Interval]:
    for part in life:
        from_ms, to_ms = max(whole.from_ms, part.from_ms), min(whole.to_ms, part.to_ms)
        if from_ms < to_ms:
            yield Interval(from_ms=from_ms, to_ms=to_ms)
