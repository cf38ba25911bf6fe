"""The token bucket: so many a second, and no more than a second's worth at once."""

from hypothesis import given
from hypothesis import strategies as st

from giornata.control.memory.request_rates import RequestRates

NAME = ("project", "art")


@given(rate=st.integers(1, 20), gaps_ms=st.lists(st.integers(0, 400), max_size=200))
def test_no_stretch_of_time_lets_more_through_than_rate_and_burst(rate: int, gaps_ms: list[int]) -> None:
    rates, at_ms, passed = RequestRates(), 0, list[int]()
    for gap in gaps_ms:
        at_ms += gap
        if rates.take({NAME: rate}, at_ms=at_ms).wait_s == 0:
            passed.append(at_ms)
    for first in range(len(passed)):
        for last in range(first, len(passed)):
            assert last - first + 1 <= rate + (passed[last] - passed[first]) * rate / 1000 + 1e-6


@given(rate=st.integers(1, 20))
def test_request_after_the_told_wait_is_admitted(rate: int) -> None:
    rates = RequestRates()
    for _ in range(rate):
        assert rates.take({NAME: rate}, at_ms=0).wait_s == 0
    standing = rates.take({NAME: rate}, at_ms=0)
    assert (standing.remaining, standing.wait_s > 0) == (0, True)
    assert rates.take({NAME: rate}, at_ms=standing.wait_s * 1000).wait_s == 0


def test_refused_request_takes_nothing_from_the_other_bucket() -> None:
    rates, key = RequestRates(), ("caller", "key")
    rates.take({key: 1}, at_ms=0)
    assert rates.take({NAME: 2, key: 1}, at_ms=0).wait_s == 1
    assert rates.take({NAME: 2}, at_ms=0).remaining == 1


def test_clock_that_was_set_back_neither_fills_nor_blocks_for_long() -> None:
    rates = RequestRates()
    assert rates.take({NAME: 1}, at_ms=10_000).wait_s == 0
    assert rates.take({NAME: 1}, at_ms=0).wait_s == 1
    assert rates.take({NAME: 1}, at_ms=1_000).wait_s == 0


def test_new_rate_holds_at_once() -> None:
    rates = RequestRates()
    rates.take({NAME: 1}, at_ms=0)
    assert rates.take({NAME: 5}, at_ms=0).remaining == 4
