"""What an instance costs, split into what its seconds were good for.

A provider bills an instance from when it runs until it is gone, whatever it does meanwhile. The parts are: start-up,
before it first asks for work; the time in which attempts are alive on it, which is useful, lost, or not decided yet
(`domain.accounting`); and the rest, in which it is idle.

Rounding: the whole is rounded once, half up to a micro-dollar, and dealt out by cumulative sums: the first n parts
together are what n parts cost, rounded half up. So the parts add up to the whole, exactly, and each is off by less
than two micro-dollars. Milliseconds are dealt out alike.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise

from giornata.domain.accounting import Seconds
from giornata.domain.money import cost_micro_usd
from giornata.domain.sharing import Interval

PARTS = ("startup", "useful", "lost", "at_risk", "idle")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """An attempt on the instance: the intervals that it is billed for, which do not overlap, and what they came to.

    Of a stay that only partly lies within the bill, useful and lost are taken to be spread evenly.
    """

    intervals: tuple[Interval, ...]
    seconds: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """What is billed of an instance: the part of its life that is asked about.

    `ready_at_ms` is when it first asked for work; None when it never did.
    """

    billed: Interval
    ready_at_ms: int | None
    price_micro_usd_per_hour: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Milliseconds and micro-dollars of each part; they add up to what is billed."""

    startup_ms: int = 0
    useful_ms: int = 0
    lost_ms: int = 0
    at_risk_ms: int = 0
    idle_ms: int = 0
    startup_micro_usd: int = 0
    useful_micro_usd: int = 0
    lost_micro_usd: int = 0
    at_risk_micro_usd: int = 0
    idle_micro_usd: int = 0

    @property
    def billed_ms(self) -> int:
        """The whole time."""
        return sum(getattr(self, f"{part}_ms") for part in PARTS)

    @property
    def billed_micro_usd(self) -> int:
        """The whole bill."""
        return sum(getattr(self, f"{part}_micro_usd") for part in PARTS)


def split(bill: Bill, stays: Sequence[Stay]) -> Split:
    """Deal the bill out. While several attempts are alive the time is theirs in equal shares."""
    whole = bill.billed
    whole_ms = max(0, whole.to_ms - whole.from_ms)
    shares = _shares(whole, stays)
    worked_ms = int(sum(shares, Fraction(0)))
    startup_ms = min(_startup_ms(bill, stays), whole_ms - worked_ms)
    of_work = apportion(worked_ms, _weights(stays, shares))
    parts_ms = (startup_ms, *of_work, whole_ms - worked_ms - startup_ms)
    price = cost_micro_usd(price_micro_usd_per_hour=bill.price_micro_usd_per_hour, billed_ms=whole_ms)
    money = apportion(price, [Fraction(part) for part in parts_ms])
    return Split(
        **{f"{part}_ms": value for part, value in zip(PARTS, parts_ms, strict=True)},
        **{f"{part}_micro_usd": value for part, value in zip(PARTS, money, strict=True)},
    )


def add(splits: Iterable[Split]) -> Split:
    """The sum."""
    rows = list(splits)
    return Split(**{name: sum(getattr(row, name) for row in rows) for name in Split.__slots__})


def apportion(whole: int, weights: Sequence[Fraction]) -> tuple[int, ...]:
    """Deal out a whole number by weight: parts that add up to it. Without any weight the last one gets it."""
    total = sum(weights, Fraction(0))
    if total <= 0:
        return (*(0 for _ in weights[1:]), whole)
    bounds = [_half_up(whole * reached / total) for reached in accumulate(weights, initial=Fraction(0))]
    return tuple(after - before for before, after in pairwise(bounds))


def _half_up(value: Fraction) -> int:
    return int((value + Fraction(1, 2)) // 1)


def _startup_ms(bill: Bill, stays: Sequence[Stay]) -> int:
    """Of the billed time, what lies before the first sign that it works."""
    begins = [interval.from_ms for stay in stays for interval in stay.intervals]
    if bill.ready_at_ms is not None:
        begins.append(bill.ready_at_ms)
    ready_ms = min(begins, default=bill.billed.to_ms)
    return max(0, min(ready_ms, bill.billed.to_ms) - bill.billed.from_ms)


def _shares(whole: Interval, stays: Sequence[Stay]) -> list[Fraction]:
    """Milliseconds within the whole that each stay has, shared where they overlap."""
    lives = [[_within(whole, interval) for interval in stay.intervals] for stay in stays]
    changes = sorted({at for life in lives for part in life for at in (part.from_ms, part.to_ms)})
    shares = [Fraction(0) for _ in stays]
    for from_ms, to_ms in pairwise(changes):
        there = [
            number
            for number, life in enumerate(lives)
            if any(part.from_ms <= from_ms and to_ms <= part.to_ms for part in life)
        ]
        for number in there:
            shares[number] += Fraction(to_ms - from_ms, len(there))
    return shares


def _within(whole: Interval, part: Interval) -> Interval:
    from_ms = min(max(whole.from_ms, part.from_ms), whole.to_ms)
    return Interval(from_ms=from_ms, to_ms=max(from_ms, min(whole.to_ms, part.to_ms)))


def _weights(stays: Sequence[Stay], shares: Sequence[Fraction]) -> list[Fraction]:
    """Useful, lost, at risk. A stay of which nothing is known brought nothing."""
    weights = [Fraction(0), Fraction(0), Fraction(0)]
    for stay, share in zip(stays, shares, strict=True):
        known = (stay.seconds.useful_ms, stay.seconds.lost_ms, stay.seconds.at_risk_ms)
        for place, value in enumerate(known if sum(known) else (0, 1, 0)):
            weights[place] += share * Fraction(value, sum(known) or 1)
    return weights
