"""Hours of the week in which a fleet has other bounds: `mon-fri 08:00-20:00 Europe/Berlin min=2`.

Days: `mon` … `sun`, ranges and lists of them (`fri-mon`, `sat,sun`), or `daily`. The hours are what a clock on the
wall says there: on a day that has an hour twice or lacks one, the window is as much longer or shorter. `22:00-06:00`
ends on the next day; `00:00-24:00` is the whole day.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MINUTES = 24 * 60
HINT = 'such as "mon-fri 08:00-20:00 Europe/Berlin min=2"'
_HOURS = re.compile(r"(\d{1,2}):(\d{2})-(\d{1,2}):(\d{2})")
_BOUND = re.compile(r"(min|max)=(\d{1,5})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Bounds for some hours of the week. `days` are of the window's beginning, 0 is Monday; minutes of the day."""

    days: frozenset[int]
    from_minute: int
    to_minute: int
    zone: str
    min_nodes: int | None = None
    max_nodes: int | None = None

    def holds(self, now_ms: int) -> bool:
        """Return True when `now_ms`, in epoch ms, lies within the window."""
        local = datetime.fromtimestamp(now_ms / 1000, tz=UTC).astimezone(ZoneInfo(self.zone))
        minute, today = local.hour * 60 + local.minute, local.weekday()
        if self.from_minute < self.to_minute:
            return today in self.days and self.from_minute <= minute < self.to_minute
        # It ends on the day after.
        return (today in self.days and minute >= self.from_minute) or (
            (today - 1) % 7 in self.days and minute < self.to_minute
        )


def parse_window(text: str) -> Window:
    """Parse a window from its text. Raises ValueError that says what is wrong."""
    words = text.split()
    if len(words) < 4:
        raise ValueError(f"{text!r} is not DAYS HH:MM-HH:MM ZONE min=N or max=N: {HINT}")
    days, hours, zone, *bounds = words
    from_minute, to_minute = _minutes(hours)
    try:
        ZoneInfo(zone)
    except (OSError, ValueError, KeyError):
        raise ValueError(f"there is no time zone {zone!r}: {HINT}") from None
    found = dict(map(_bound, bounds))
    if found.get("min", 0) > found.get("max", 1 << 30):
        raise ValueError(f"min is more than max in {text!r}")
    return Window(
        days=frozenset(_days(days.lower())),
        from_minute=from_minute,
        to_minute=to_minute,
        zone=zone,
        min_nodes=found.get("min"),
        max_nodes=found.get("max"),
    )


def _bound(word: str) -> tuple[str, int]:
    if not (match := _BOUND.fullmatch(word)):
        raise ValueError(f"{word!r} is neither min=N nor max=N: {HINT}")
    return match[1], int(match[2])


def _minutes(hours: str) -> tuple[int, int]:
    match = _HOURS.fullmatch(hours)
    ends = [int(match[each]) * 60 + int(match[each + 1]) for each in (1, 3)] if match else []
    if not match or max(ends) > MINUTES or max(int(match[2]), int(match[4])) > 59 or ends[0] == ends[1]:
        raise ValueError(f"{hours!r} are not hours of a day: {HINT}")
    return ends[0] % MINUTES, ends[1]


def _days(text: str) -> Iterable[int]:
    if text == "daily":
        yield from range(7)
        return
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first not in DAYS or (last or first) not in DAYS:
            raise ValueError(f"{part!r} are not days of the week: {HINT}")
        begin, end = DAYS.index(first), DAYS.index(last or first)
        yield from (day % 7 for day in range(begin, end + 1 + 7 * (end < begin)))
