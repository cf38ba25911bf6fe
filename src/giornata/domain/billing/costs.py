"""The cost of an instance, split by the use of its seconds, and the shares of the attempts on it.

A provider bills an instance while it runs, whatever it does meanwhile, and may change its price. The parts are:
start-up, before it first asks for work, and before the first steps of attempts that were of use; the time in which
attempts are alive on it, which is useful, lost, or not decided yet (`domain.billing.accounting`); and the rest, in
which it is idle.

Rounding: each interval at one price is rounded once, half up to a micro-dollar, and dealt out by cumulative sums: the
first n parts together are what n parts cost, rounded half up. So the parts add up to the whole, exactly, and each is
off by less than two micro-dollars for each interval. Milliseconds are dealt out alike.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise

from giornata.domain.billing.accounting import Seconds
from giornata.domain.billing.money import MS_PER_HOUR, cost_micro_usd


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A stretch of an attempt's life that is billed. Instants are epoch milliseconds."""

    from_ms: int
    to_ms: int


def shared_cost_micro_usd(interval: Interval, beside: Iterable[Sequence[Interval]], *, price_per_hour: int) -> int:
    """The cost of the interval at an hourly price in micro-dollars, rounded half up to a micro-dollar.

    A node costs its price once: at each moment the attempts that are billed pay equal shares. So no bill depends on
    the order of arrival, and a job that leaves makes the node dearer for those that stay.

    `beside` are the lives of the other attempts on the node, each as its intervals, which do not overlap. All shares
    together are the price of the time in which any attempt is billed, to half a micro-dollar for each interval.
    """
    inside = [part for life in beside for part in _parts_within(interval, life)]
    changes = sorted(
        {interval.from_ms, interval.to_ms, *(at for part in inside for at in (part.from_ms, part.to_ms))}
    )
    share_ms = Fraction(0)
    for from_ms, to_ms in pairwise(changes):
        there = 1 + sum(part.from_ms <= from_ms and to_ms <= part.to_ms for part in inside)
        share_ms += Fraction(to_ms - from_ms, there)
    return int((price_per_hour * share_ms + Fraction(MS_PER_HOUR, 2)) // MS_PER_HOUR)


def _parts_within(whole: Interval, life: Sequence[Interval]) -> Iterable[Interval]:
    for part in life:
        from_ms, to_ms = max(whole.from_ms, part.from_ms), min(whole.to_ms, part.to_ms)
        if from_ms < to_ms:
            yield Interval(from_ms=from_ms, to_ms=to_ms)


PARTS = ("startup", "useful", "lost", "at_risk", "idle")


@dataclass(frozen=True, slots=True, kw_only=True)
class BilledAttempt:
    """An attempt on the instance: the intervals that it is billed for, which do not overlap, and what they came to.

    `preparation_ms` is the part of its useful time that counts as start-up. Of a stay that only partly lies within
    the bill, or that has several prices, all of it is taken to be spread evenly.
    """

    intervals: tuple[Interval, ...]
    seconds: Seconds
    preparation_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Billed:
    """An interval in which the provider bills at one price."""

    interval: Interval
    price_micro_usd_per_hour: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """The billed time of an instance: the part of its life that is asked about, in intervals that do not overlap.

    `ready_at_ms` is when it first asked for work; None when it never did.
    """

    billed: tuple[Billed, ...]
    ready_at_ms: int | None


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
        """The billed time: the sum of all parts, in milliseconds."""
        return sum(getattr(self, f"{part}_ms") for part in PARTS)

    @property
    def billed_micro_usd(self) -> int:
        """The bill: the sum of all parts, in micro-dollars."""
        return sum(getattr(self, f"{part}_micro_usd") for part in PARTS)


def split(bill: Bill, stays: Sequence[BilledAttempt]) -> Split:
    """Deal the bill out. While several attempts are alive the time is theirs in equal shares."""
    ready_ms = _ready_ms(bill, stays)
    return add(_split_one(billed, ready_ms, stays) for billed in bill.billed)


def _split_one(billed: Billed, ready_ms: int | None, stays: Sequence[BilledAttempt]) -> Split:
    """The part at one price."""
    whole = billed.interval
    whole_ms = max(0, whole.to_ms - whole.from_ms)
    shares = _shares(whole, stays)
    worked_ms = int(sum(shares, Fraction(0)))
    began_ms = whole.to_ms if ready_ms is None else min(ready_ms, whole.to_ms)
    before_ms = min(max(0, began_ms - whole.from_ms), whole_ms - worked_ms)
    preparation_ms, *of_work = apportion(worked_ms, _weights(stays, shares))
    parts_ms = (before_ms + preparation_ms, *of_work, whole_ms - worked_ms - before_ms)
    price = cost_micro_usd(price_micro_usd_per_hour=billed.price_micro_usd_per_hour, billed_ms=whole_ms)
    money = apportion(price, [Fraction(part) for part in parts_ms])
    return Split(
        **{f"{part}_ms": value for part, value in zip(PARTS, parts_ms, strict=True)},
        **{f"{part}_micro_usd": value for part, value in zip(PARTS, money, strict=True)},
    )


def add(splits: Iterable[Split]) -> Split:
    """Return the sum of the splits, part by part."""
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


def _ready_ms(bill: Bill, stays: Sequence[BilledAttempt]) -> int | None:
    """The first sign that it works; None when there was none."""
    begins = [interval.from_ms for stay in stays for interval in stay.intervals]
    if bill.ready_at_ms is not None:
        begins.append(bill.ready_at_ms)
    return min(begins, default=None)


def _shares(whole: Interval, stays: Sequence[BilledAttempt]) -> list[Fraction]:
    """Milliseconds within the whole that each stay has, shared where they overlap."""
    ends, begins = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    for number, stay in enumerate(stays):
        for part in (_within(whole, interval) for interval in stay.intervals):
            if part.from_ms < part.to_ms:
                begins[part.from_ms].append(number)
                ends[part.to_ms].append(number)
    alone_ms, shared_ms = [0] * len(stays), [Fraction(0)] * len(stays)
    there: set[int] = set()
    for from_ms, to_ms in pairwise(sorted({*begins, *ends})):
        there.difference_update(ends[from_ms])
        there.update(begins[from_ms])
        if len(there) == 1:  # the usual case, without fractions
            alone_ms[next(iter(there))] += to_ms - from_ms
        else:
            for number in there:
                shared_ms[number] += Fraction(to_ms - from_ms, len(there))
    return [alone + shared for alone, shared in zip(alone_ms, shared_ms, strict=True)]


def _within(whole: Interval, part: Interval) -> Interval:
    from_ms = min(max(whole.from_ms, part.from_ms), whole.to_ms)
    return Interval(from_ms=from_ms, to_ms=max(from_ms, min(whole.to_ms, part.to_ms)))


def _weights(stays: Sequence[BilledAttempt], shares: Sequence[Fraction]) -> list[Fraction]:
    """Preparation, useful, lost, at risk. A stay of which nothing is known brought nothing."""
    weights = [Fraction(0), Fraction(0), Fraction(0), Fraction(0)]
    for stay, share in zip(stays, shares, strict=True):
        of, before_ms = stay.seconds, min(stay.preparation_ms, stay.seconds.useful_ms)
        known = (before_ms, of.useful_ms - before_ms, of.lost_ms, of.at_risk_ms)
        for place, value in enumerate(known if sum(known) else (0, 0, 1, 0)):
            if value:
                weights[place] += share * Fraction(value, sum(known) or 1)
    return weights


def ended_about_ms(*, there_ms: int, gone_ms: int, asked_ms: int | None, missed_ms: int | None) -> int:
    """Estimate the end of an instance that was there at `there_ms`, and was not listed as running at `gone_ms`.

    An instance that was asked to end in between ended when it was asked. Otherwise it ended before `missed_ms`, when
    a heartbeat of its node was due and did not come. The middle of what is left is as often too early as too late.
    Instants are epoch milliseconds.
    """
    there_ms = min(there_ms, gone_ms)
    if asked_ms is not None and there_ms <= asked_ms <= gone_ms:
        return asked_ms
    before_ms = gone_ms if missed_ms is None or not there_ms < missed_ms < gone_ms else missed_ms
    return (there_ms + before_ms) // 2
