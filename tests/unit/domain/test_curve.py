"""The steps of a thinned curve."""

from hypothesis import given
from hypothesis import strategies as st

from giornata.domain.jobs.curve import curve_steps

STEPS = st.integers(0, 10**6)


@given(first=STEPS, span=STEPS, points=st.integers(10, 2000), rare=st.none() | st.integers(1, 10**6))
def test_curve_has_at_most_so_many_steps_and_both_ends(first: int, span: int, points: int, rare: int | None) -> None:
    found = curve_steps(first, first + span, points, rare_every=rare)
    assert len(found.steps) <= points
    assert (found.steps[0], found.steps[-1]) == (first, first + span)
    assert list(found.steps) == sorted(set(found.steps))
    assert found.every == 1 or str(found.every).rstrip("0") in {"1", "2", "5"}


@given(first=STEPS, span=STEPS, points=st.integers(10, 2000), rare=st.none() | st.integers(1, 10**6))
def test_no_gap_of_a_curve_is_wider_than_it_says(first: int, span: int, points: int, rare: int | None) -> None:
    found = curve_steps(first, first + span, points, rare_every=rare)
    assert all(later - step <= found.every for step, later in zip(found.steps, found.steps[1:], strict=False))


def test_short_curve_is_whole_and_a_long_one_uses_at_least_a_third_of_its_points() -> None:
    assert curve_steps(1, 1000, 1000).steps == range(1, 1001)
    assert curve_steps(1, 1001, 1000).every == 2
    for span in (5_000, 77_777, 10**6):
        assert len(curve_steps(0, span, 1000).steps) > 330, span


def test_steps_of_rare_values_are_kept_where_the_grid_would_miss_them() -> None:
    found = curve_steps(1, 100_000, 1000, rare_every=333)
    assert len([step for step in found.steps if step % 333 == 0]) > 100
