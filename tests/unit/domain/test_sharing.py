"""A node's price is paid once, in equal shares."""

from hypothesis import given
from hypothesis import strategies as st

from giornata.domain.billing.costs import Interval, shared_cost_micro_usd
from giornata.domain.billing.money import MS_PER_HOUR, cost_micro_usd

LIFE = st.lists(st.integers(0, 40), min_size=2, max_size=6, unique=True).map(
    lambda at: tuple(
        Interval(from_ms=from_ms * 1000, to_ms=to_ms * 1000)
        for from_ms, to_ms in zip(sorted(at)[::2], sorted(at)[1::2], strict=False)
    )
)
PRICE = st.integers(0, 10**9)


@given(lives=st.lists(LIFE, min_size=1, max_size=5), price=PRICE)
def test_the_shares_add_up_to_what_the_node_costs(lives: list[tuple[Interval, ...]], price: int) -> None:
    total = 0
    for number, life in enumerate(lives):
        beside = lives[:number] + lives[number + 1 :]
        total += sum(shared_cost_micro_usd(part, beside, price_per_hour=price) for part in life)
    seconds = {
        second for life in lives for part in life for second in range(part.from_ms // 1000, part.to_ms // 1000)
    }
    intervals = sum(map(len, lives))
    assert abs(2 * (total * MS_PER_HOUR - price * len(seconds) * 1000)) <= intervals * MS_PER_HOUR


@given(life=LIFE, price=PRICE)
def test_alone_it_is_the_whole_price(life: tuple[Interval, ...], price: int) -> None:
    for part in life:
        alone = cost_micro_usd(price_micro_usd_per_hour=price, billed_ms=part.to_ms - part.from_ms)
        assert shared_cost_micro_usd(part, [], price_per_hour=price) == alone


@given(life=LIFE, beside=st.lists(LIFE, max_size=3), more=LIFE, price=PRICE)
def test_job_costs_no_more_with_another_beside_it_and_at_least_its_share(
    life: tuple[Interval, ...], beside: list[tuple[Interval, ...]], more: tuple[Interval, ...], price: int
) -> None:
    for part in life:
        before = shared_cost_micro_usd(part, beside, price_per_hour=price)
        after = shared_cost_micro_usd(part, [*beside, more], price_per_hour=price)
        assert after <= before
        least = cost_micro_usd(price_micro_usd_per_hour=price, billed_ms=part.to_ms - part.from_ms)
        assert after >= least // (len(beside) + 2)


def test_shared_cost_of_overlapping_intervals_equals_hand_computed_split() -> None:
    hour = Interval(from_ms=0, to_ms=MS_PER_HOUR)
    half = Interval(from_ms=0, to_ms=MS_PER_HOUR // 2)
    last_quarter = Interval(from_ms=3 * MS_PER_HOUR // 4, to_ms=2 * MS_PER_HOUR)
    quarters = 0.5 + 0.5 + 1 + 0.5
    assert shared_cost_micro_usd(hour, [[half], [last_quarter]], price_per_hour=4_000_000) == quarters * 1_000_000
