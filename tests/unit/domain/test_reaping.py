"""No fleet starves itself."""

import pytest

from giornata.domain.fleets.replacement import MS_PER_HOUR, ReapPolicy, may_reallocate

NOW_MS = 1_790_000_000_000
TWO_DAYS_S = 48 * 3600.0


def room(nodes: int, *ages_s: float, per_minute: int | None = None, excluded_s: float = TWO_DAYS_S) -> int:
    return may_reallocate(
        nodes=nodes,
        reallocated_at_ms=[round(NOW_MS - age_s * 1000) for age_s in ages_s],
        per_minute=per_minute,
        excluded_s=excluded_s,
        policy=ReapPolicy(),
        now_ms=NOW_MS,
    )


@pytest.mark.parametrize(("nodes", "expected"), [(0, 1), (1, 1), (9, 1), (10, 1), (40, 4), (100, 10)])
def test_a_tenth_of_the_fleet_an_hour_and_at_least_one(nodes: int, expected: int) -> None:
    assert room(nodes) == expected


def test_replacements_within_the_last_hour_count_against_reap_limit() -> None:
    assert room(40, 10, 20, 30) == 1
    assert room(40, 10, 20, 30, 40) == 0
    assert room(40, 3601, 3602, 3603, 3604) == 4


def test_the_providers_limit_counts() -> None:
    assert room(100, per_minute=3) == 3
    assert room(100, 1, 2, per_minute=3) == 1
    assert room(100, 61, 62, per_minute=3) == 3


def test_no_more_than_half_of_the_fleet_is_excluded_at_a_time() -> None:
    day_ages = [24 * 3600.0 + number for number in range(20)]
    assert room(40, *day_ages) == 0
    assert room(40, *day_ages[:18]) == 2
    assert room(40, *day_ages, excluded_s=0) == 4, "where nobody is excluded, only the hour counts"


def test_excluded_machines_stop_counting_against_reap_limit_when_exclusion_ends() -> None:
    assert room(40, *[TWO_DAYS_S + 1] * 20) == 4
    assert MS_PER_HOUR == 3_600_000
