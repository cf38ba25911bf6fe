"""What an instance's seconds were good for: the parts add up to the bill, to the micro-dollar."""

import sys
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from giornata.domain.billing.accounting import Seconds
from giornata.domain.billing.costs import PARTS, Bill, Billed, BilledAttempt, Interval, Split, add, apportion, split
from giornata.domain.billing.money import MS_PER_HOUR, cost_micro_usd

PRICE = 360_000  # 100 micro-dollars a second


def interval(from_s: float, to_s: float) -> Interval:
    return Interval(from_ms=round(from_s * 1000), to_ms=round(to_s * 1000))


def bill(from_s: float, to_s: float, *, ready_s: float | None = None) -> Bill:
    ready_at_ms = None if ready_s is None else round(ready_s * 1000)
    return Bill(billed=(billed_at(from_s, to_s),), ready_at_ms=ready_at_ms)


def billed_at(from_s: float, to_s: float, *, price: int = PRICE) -> Billed:
    return Billed(interval=interval(from_s, to_s), price_micro_usd_per_hour=price)


def stay(
    from_s: float, to_s: float, *, useful: int = 1, lost: int = 0, at_risk: int = 0, preparation: int = 0
) -> BilledAttempt:
    seconds = Seconds(useful_ms=useful, lost_ms=lost, at_risk_ms=at_risk)
    return BilledAttempt(intervals=(interval(from_s, to_s),), seconds=seconds, preparation_ms=preparation)


def in_seconds(found: Split) -> dict[str, float]:
    return {part: getattr(found, f"{part}_ms") / 1000 for part in PARTS if getattr(found, f"{part}_ms")}


@pytest.mark.parametrize(
    ("billed", "stays", "expected"),
    [
        (bill(0, 100), [], {"startup": 100}),
        (bill(0, 100, ready_s=30), [], {"startup": 30, "idle": 70}),
        (bill(0, 100, ready_s=30), [stay(40, 60)], {"startup": 30, "idle": 50, "useful": 20}),
        (bill(0, 100), [stay(40, 60), stay(70, 100)], {"startup": 40, "useful": 50, "idle": 10}),
        (bill(0, 100, ready_s=0), [stay(0, 100, useful=3, lost=1)], {"useful": 75, "lost": 25}),
        (bill(0, 100, ready_s=0), [stay(0, 100, useful=0, lost=0)], {"lost": 100}),
        (bill(0, 100, ready_s=0), [stay(0, 100, useful=4, at_risk=1)], {"useful": 80, "at_risk": 20}),
        # Two at one time have half of it each.
        (bill(0, 100, ready_s=0), [stay(0, 100), stay(60, 100, useful=0, lost=1)], {"useful": 80, "lost": 20}),
        # Only what is billed counts, and what is asked about began long after the start-up.
        (bill(50, 100, ready_s=10), [stay(0, 80)], {"useful": 30, "idle": 20}),
        (bill(0, 100, ready_s=0), [stay(80, 130)], {"useful": 20, "idle": 80}),
        (bill(0, 0, ready_s=0), [], {}),
        # What came before the first step is start-up.
        (
            bill(0, 100, ready_s=10),
            [stay(20, 60, useful=4, preparation=1)],
            {"startup": 20, "useful": 30, "idle": 50},
        ),
        (bill(0, 40, ready_s=0), [stay(0, 40, useful=0, lost=1, preparation=1)], {"lost": 40}),
    ],
)
def test_billed_seconds_are_split_into_startup_idle_useful_lost_and_at_risk(
    billed: Bill, stays: list[BilledAttempt], expected: dict[str, float]
) -> None:
    found = split(billed, stays)
    assert in_seconds(found) == expected
    assert found.billed_micro_usd == round(found.billed_ms / 10)


def test_each_interval_costs_its_own_price_and_the_gap_between_two_costs_nothing() -> None:
    prices = (billed_at(0, 100), billed_at(100, 200, price=4 * PRICE), billed_at(300, 400, price=2 * PRICE))
    found = split(Bill(billed=prices, ready_at_ms=50_000), [stay(150, 350)])
    assert in_seconds(found) == {"startup": 50, "useful": 100, "idle": 150}
    assert found.startup_micro_usd == 50 * 100
    assert found.useful_micro_usd == 50 * 400 + 50 * 200
    assert found.idle_micro_usd == 50 * 100 + 50 * 400 + 50 * 200
    assert found.billed_micro_usd == 100 * 100 + 100 * 400 + 100 * 200


LIFE = st.lists(st.integers(0, 4_000_000), min_size=2, max_size=6, unique=True).map(
    lambda at: tuple(
        Interval(from_ms=from_ms, to_ms=to_ms)
        for from_ms, to_ms in zip(sorted(at)[::2], sorted(at)[1::2], strict=False)
    )
)
SECONDS = st.tuples(st.integers(0, 10**7), st.integers(0, 10**7), st.integers(0, 10**7)).map(
    lambda three: Seconds(useful_ms=three[0], lost_ms=three[1], at_risk_ms=three[2])
)
STAY = st.builds(BilledAttempt, intervals=LIFE, seconds=SECONDS, preparation_ms=st.integers(0, 10**7))
PRICES = st.lists(st.integers(0, 10**9), min_size=3, max_size=3)
BILL = st.builds(
    lambda life, prices, ready_at_ms: Bill(
        billed=tuple(
            Billed(interval=one, price_micro_usd_per_hour=price) for one, price in zip(life, prices, strict=False)
        ),
        ready_at_ms=ready_at_ms,
    ),
    LIFE,
    PRICES,
    st.none() | st.integers(0, 4_000_000),
)


@given(billed=BILL, stays=st.lists(STAY, max_size=4))
def test_the_parts_add_up_to_the_bill(billed: Bill, stays: list[BilledAttempt]) -> None:
    found = split(billed, stays)
    assert found.billed_ms == sum(one.interval.to_ms - one.interval.from_ms for one in billed.billed)
    assert found.billed_micro_usd == sum(
        cost_micro_usd(
            price_micro_usd_per_hour=one.price_micro_usd_per_hour, billed_ms=one.interval.to_ms - one.interval.from_ms
        )
        for one in billed.billed
    )
    assert all(getattr(found, f"{part}_ms") >= 0 for part in PARTS)


@given(billed=BILL, stays=st.lists(STAY, max_size=4))
def test_each_part_costs_its_time_at_the_price(billed: Bill, stays: list[BilledAttempt]) -> None:
    for one in billed.billed:
        found = split(Bill(billed=(one,), ready_at_ms=billed.ready_at_ms), stays)
        for part in PARTS:
            exact = Fraction(one.price_micro_usd_per_hour * getattr(found, f"{part}_ms"), MS_PER_HOUR)
            assert abs(getattr(found, f"{part}_micro_usd") - exact) < 2


@given(billed=BILL, stays=st.lists(STAY, max_size=4))
def test_work_is_the_time_in_which_anything_lives(billed: Bill, stays: list[BilledAttempt]) -> None:
    lives = [part for one in stays for part in one.intervals]
    for one in billed.billed:
        whole, alive_ms = one.interval, 0
        points = sorted({whole.from_ms, whole.to_ms, *(at for part in lives for at in (part.from_ms, part.to_ms))})
        for from_ms, to_ms in pairwise(points):
            if whole.from_ms <= from_ms and to_ms <= whole.to_ms:
                alive_ms += (to_ms - from_ms) * any(part.from_ms <= from_ms and to_ms <= part.to_ms for part in lives)
        unprepared = [replace(each, preparation_ms=0) for each in stays]
        found = split(Bill(billed=(one,), ready_at_ms=billed.ready_at_ms), unprepared)
        assert found.useful_ms + found.lost_ms + found.at_risk_ms == alive_ms
        prepared = split(Bill(billed=(one,), ready_at_ms=billed.ready_at_ms), stays)
        moved_ms = prepared.startup_ms - found.startup_ms
        assert abs(found.useful_ms - prepared.useful_ms - moved_ms) <= 2, "only what was useful becomes start-up"
        assert (prepared.lost_ms, prepared.idle_ms) == (
            pytest.approx(found.lost_ms, abs=2),
            found.idle_ms,
        )


@given(splits=st.lists(st.builds(split, BILL, st.lists(STAY, max_size=2)), max_size=4))
def test_sums_add_up_too(splits: list[Split]) -> None:
    assert add(splits).billed_micro_usd == sum(each.billed_micro_usd for each in splits)
    assert add(splits).billed_ms == sum(each.billed_ms for each in splits)


@given(whole=st.integers(0, 10**12), weights=st.lists(st.fractions(0, 10**6), min_size=1, max_size=6))
def test_apportioned_parts_add_up_to_whole(whole: int, weights: list[Fraction]) -> None:
    parts = apportion(whole, weights)
    assert sum(parts) == whole
    assert min(parts) >= 0


def test_splitting_many_attempts_takes_no_more_calls_for_each_than_splitting_few() -> None:
    """A node that draws pictures ends hundreds of leases an hour."""

    def calls(count: int) -> int:
        stays, made = [stay(number * 10, number * 10 + 9) for number in range(count)], 0

        def count_one(_frame: object, event: str, _argument: object) -> None:
            nonlocal made
            made += event == "call"

        before = sys.getprofile()
        sys.setprofile(count_one)
        try:
            found = split(bill(0, count * 10, ready_s=0), stays)
        finally:
            sys.setprofile(before)
        assert (found.useful_ms, found.idle_ms) == (count * 9000, count * 1000)
        return made

    assert calls(400) <= 11 * calls(40)
