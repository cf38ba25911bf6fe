"""Calendar months in UTC, and the order in which budgets stop a job."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from giornata.domain.billing.budget import (
    Budget,
    Payer,
    ProjectLimits,
    Spent,
    first_used_up,
    month_of,
    month_start_ms,
    project_budgets,
)

INSTANTS = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


def ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)


@given(INSTANTS)
def test_a_month_begins_at_midnight_of_its_first_day_and_holds_the_instant(at: datetime) -> None:
    began = datetime.fromtimestamp(month_start_ms(int(at.timestamp() * 1000)) / 1000, UTC)
    assert (began.year, began.month) == (at.year, at.month)
    assert (began.day, began.hour, began.minute, began.second, began.microsecond) == (1, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("at", "month"),
    [
        (datetime(2026, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC), "2026-12"),
        (datetime(2027, 1, 1, tzinfo=UTC), "2027-01"),
        (datetime(2028, 2, 29, 12, tzinfo=UTC), "2028-02"),
    ],
)
def test_a_month_has_the_name_of_its_year_and_number(at: datetime, month: str) -> None:
    assert month_of(ms(at)) == month
    assert month_of(month_start_ms(ms(at))) == month
    assert month_of(month_start_ms(ms(at)) - 1) != month


def test_a_project_has_the_budgets_that_are_set_each_with_what_is_spent_of_it() -> None:
    at_ms = ms(datetime(2026, 11, 22, tzinfo=UTC))
    spent = Spent(total_micro_usd=70, month_micro_usd=30)
    assert project_budgets(ProjectLimits(), spent, at_ms=at_ms) == []
    whole, month = project_budgets(ProjectLimits(total_micro_usd=70, monthly_micro_usd=30), spent, at_ms=at_ms)
    assert (whole.payer, whole.limit_micro_usd, whole.spent_micro_usd, whole.month) == (Payer.PROJECT, 70, 70, None)
    assert (month.payer, month.limit_micro_usd, month.spent_micro_usd, month.month) == (
        Payer.MONTH,
        30,
        30,
        "2026-11",
    )
    own = Budget(payer=Payer.JOB, limit_micro_usd=1, spent_micro_usd=1)
    assert first_used_up((month, whole, own)) is own
    assert first_used_up((month, whole)) is whole, "the next month would not help"
    assert first_used_up((month,)) is month


def test_a_limit_of_nothing_is_a_limit() -> None:
    assert ProjectLimits(total_micro_usd=0)
    assert ProjectLimits(monthly_micro_usd=0)
    assert not ProjectLimits()


def test_the_length_of_a_month_is_right_all_year() -> None:
    at = datetime(2027, 1, 15, tzinfo=UTC)
    starts = {month_start_ms(ms(at + timedelta(days=day))) for day in range(365)}
    assert len(starts) == 13
