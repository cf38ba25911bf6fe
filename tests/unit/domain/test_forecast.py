"""The forecast is right for the model that it assumes."""

from hypothesis import given
from hypothesis import strategies as st

from giornata.domain.jobs.estimates import Forecast, forecast


def played(free_in_s: list[int], ahead_s: list[int]) -> int:
    """The same model second by second: places with clocks, and a queue."""
    busy, queue, second = list(free_in_s), list(ahead_s), 0
    while True:
        for place in range(len(busy)):
            while busy[place] == 0:
                if not queue:
                    return second
                busy[place] = queue.pop(0)
        busy = [left - 1 for left in busy]
        second += 1


@given(free=st.lists(st.integers(0, 20), min_size=1, max_size=4), ahead=st.lists(st.integers(0, 12), max_size=12))
def test_forecast_equals_simulated_queue(free: list[int], ahead: list[int]) -> None:
    found = forecast(free_in_s=free, ahead_s=ahead, run_s=7)
    start_s = played(free, ahead)
    assert found == Forecast(start_s=start_s, end_s=start_s + 7)


def test_forecast_without_any_place_is_none() -> None:
    assert forecast(free_in_s=[], ahead_s=[1.0], run_s=1) is None


def test_forecast_end_is_unknown_when_run_time_is_unknown() -> None:
    assert forecast(free_in_s=[3.0], ahead_s=[], run_s=None) == Forecast(start_s=3.0, end_s=None)
