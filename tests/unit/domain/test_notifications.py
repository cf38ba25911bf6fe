"""Which events a webhook gets, and when."""

from hypothesis import given
from hypothesis import strategies as st

from giornata.domain.accounts.notifications import (
    DAY_MS,
    DIGEST_AT_MS,
    RETRY_DELAYS_S,
    matches,
    next_digest_ms,
    retry_delay_s,
)

DAY_S = 86_400


def test_pattern_names_an_event_its_group_or_everything() -> None:
    assert matches(["job.failed"], "job.failed")
    assert matches(["checkpoint.committed", "job.*"], "job.failed")
    assert matches(["*"], "notice")
    assert not matches(["job.failed", "checkpoint.*"], "job.succeeded")
    assert not matches(["jo*"], "job.failed")


@given(st.floats(0, 1, exclude_max=True))
def test_retries_take_about_three_days_and_end(draw: float) -> None:
    delays = [retry_delay_s(tries, draw=draw) for tries in range(1, len(RETRY_DELAYS_S) + 2)]
    assert delays.pop() is None
    assert delays == sorted(delays)
    assert 2.3 * DAY_S < sum(each for each in delays if each is not None) < 3.7 * DAY_S


def test_jitter_separates_deliveries_that_failed_together() -> None:
    assert {retry_delay_s(1, draw=draw) for draw in (0.0, 0.5, 0.75)} == {4.0, 5.0, 5.5}


@given(st.integers(0, 2**42))
def test_digest_is_due_within_a_day_at_seven(at_ms: int) -> None:
    due_ms = next_digest_ms(at_ms)
    assert at_ms < due_ms <= at_ms + DAY_MS
    assert due_ms % DAY_MS == DIGEST_AT_MS
