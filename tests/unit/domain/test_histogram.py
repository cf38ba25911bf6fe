"""Counts between bounds."""

from hypothesis import given
from hypothesis import strategies as st

from giornata.domain.telemetry import Histogram

BOUNDS = (0.1, 1.0, 10.0)


@given(st.lists(st.floats(0, 100)))
def test_every_observation_is_counted_once_at_or_below_its_bound(values: list[float]) -> None:
    histogram = Histogram(BOUNDS)
    for value in values:
        histogram.observe(value)
    for number, bound in enumerate(BOUNDS, start=1):
        assert sum(histogram.counts[:number]) == sum(value <= bound for value in values)
    assert sum(histogram.counts) == len(values)
    assert histogram.total == sum(values)


def test_histograms_add_up_by_bucket() -> None:
    one, other = Histogram(BOUNDS), Histogram(BOUNDS)
    one.observe(0.1)
    other.observe(0.5)
    other.observe(50)
    one.add(other)
    assert (one.counts, one.total) == ([1, 1, 0, 1], 50.6)
