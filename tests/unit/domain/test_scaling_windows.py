"""Hours of the week, in their own time zone."""

from datetime import UTC, datetime

import pytest

from giornata.domain.fleets.scaling_windows import parse_window


def ms(text: str) -> int:
    """An instant of UTC."""
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    ("window", "instant", "holds"),
    [
        # 2026-11-20 is a Friday; Berlin is one hour ahead of UTC in winter.
        ("mon-fri 08:00-20:00 Europe/Berlin min=2", "2026-11-20T06:59", False),
        ("mon-fri 08:00-20:00 Europe/Berlin min=2", "2026-11-20T07:00", True),
        ("mon-fri 08:00-20:00 Europe/Berlin min=2", "2026-11-20T18:59", True),
        ("mon-fri 08:00-20:00 Europe/Berlin min=2", "2026-11-20T19:00", False),
        ("mon-fri 08:00-20:00 Europe/Berlin min=2", "2026-11-21T12:00", False),
        ("sat,sun 00:00-24:00 UTC max=0", "2026-11-21T00:00", True),
        ("sat,sun 00:00-24:00 UTC max=0", "2026-11-22T23:59", True),
        ("sat,sun 00:00-24:00 UTC max=0", "2026-11-23T00:00", False),
        ("fri-mon 10:00-11:00 UTC min=1", "2026-11-22T10:30", True),
        ("fri-mon 10:00-11:00 UTC min=1", "2026-11-24T10:30", False),
        ("daily 10:00-11:00 UTC min=1", "2026-11-24T10:30", True),
        # Over midnight: it is Friday's window until Saturday's morning.
        ("fri 22:00-06:00 UTC min=1", "2026-11-20T21:59", False),
        ("fri 22:00-06:00 UTC min=1", "2026-11-20T23:00", True),
        ("fri 22:00-06:00 UTC min=1", "2026-11-21T05:59", True),
        ("fri 22:00-06:00 UTC min=1", "2026-11-21T06:00", False),
        ("fri 22:00-06:00 UTC min=1", "2026-11-20T03:00", False),
        # Clocks go back on 2026-10-25: 02:30 comes twice in Berlin, and the window is an hour longer.
        ("sun 02:00-03:00 Europe/Berlin min=1", "2026-10-24T23:59", False),
        ("sun 02:00-03:00 Europe/Berlin min=1", "2026-10-25T00:30", True),
        ("sun 02:00-03:00 Europe/Berlin min=1", "2026-10-25T01:30", True),
        ("sun 02:00-03:00 Europe/Berlin min=1", "2026-10-25T02:00", False),
        # They go forward on 2026-03-29: there is no 02:30, and noon is an hour earlier than the day before.
        ("sun 02:00-03:00 Europe/Berlin min=1", "2026-03-29T00:59", False),
        ("sun 02:00-03:00 Europe/Berlin min=1", "2026-03-29T01:00", False),
        ("daily 12:00-13:00 Europe/Berlin min=1", "2026-03-28T11:00", True),
        ("daily 12:00-13:00 Europe/Berlin min=1", "2026-03-29T10:00", True),
        ("daily 12:00-13:00 Europe/Berlin min=1", "2026-03-29T11:00", False),
    ],
)
def test_a_window_holds_by_the_clock_on_the_wall(window, instant, holds):
    assert parse_window(window).holds(ms(instant)) is holds


def test_scaling_window_parses_min_and_max():
    window = parse_window("mon 08:00-09:00 UTC min=2 max=7")
    assert (window.min_nodes, window.max_nodes) == (2, 7)
    assert parse_window("mon 08:00-09:00 UTC max=0").max_nodes == 0


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is not DAYS"),
        ("mon-fri 08:00-20:00 Europe/Berlin", "is not DAYS"),
        ("moon 08:00-20:00 UTC min=1", "not days of the week"),
        ("mon-sum 08:00-20:00 UTC min=1", "not days of the week"),
        ("mon 8-20 UTC min=1", "not hours of a day"),
        ("mon 08:00-24:30 UTC min=1", "not hours of a day"),
        ("mon 08:60-09:00 UTC min=1", "not hours of a day"),
        ("mon 08:00-08:00 UTC min=1", "not hours of a day"),
        ("mon 08:00-20:00 Europe/Atlantis min=1", "no time zone"),
        ("mon 08:00-20:00 ../etc min=1", "no time zone"),
        ("mon 08:00-20:00 UTC most=1", "neither min=N nor max=N"),
        ("mon 08:00-20:00 UTC min=-1", "neither min=N nor max=N"),
        ("mon 08:00-20:00 UTC min=3 max=2", "min is more than max"),
    ],
)
def test_invalid_scaling_window_is_refused_with_reason(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        parse_window(text)
