"""What the books may miss of instances that nobody could list."""

import pytest

from giornata.simulate.results.invariants import unknowable_ms

BLIND = ((1_000, 2_000), (5_000, 9_000))


@pytest.mark.parametrize(
    ("began_ms", "ended_ms", "off_ms"),
    [
        (0, 900, 0),  # it ended before
        (0, 3_000, 0),  # it was seen again after
        (0, 1_500, 500),  # the middle is booked as its end
        (1_100, 1_950, 850),  # it never was seen to run
        (1_100, 5_500, 2_000),
    ],
)
def test_unknowable_time_is_of_the_interval_in_which_an_instance_ended(began_ms, ended_ms, off_ms):
    assert unknowable_ms(began_ms, ended_ms, blind=BLIND) == off_ms
