"""Bars that show the use of billed time. Everything is geometry in the units of the drawing."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from giornata.control.ports.user_queries.money_store import FleetTime

WIDTH = 1000.0
USES = ("useful", "startup", "idle", "lost", "at_risk")
WORDS = {"useful": "useful", "startup": "start-up", "idle": "idle", "lost": "lost", "at_risk": "not safe yet"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePart:
    """One use of the time: its place in the bar, its seconds, and its share in percent."""

    use: str
    words: str
    x: float
    width: float
    seconds: float
    percent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBar:
    """The billed time of a fleet, or of all of them, and what it cost."""

    name: str
    parts: Sequence[TimePart]
    seconds: float
    billed_micro_usd: int


def time_bars(fleets: Sequence[FleetTime]) -> list[TimeBar]:
    """Return a bar of all fleets, and one of each where there are several; none where nothing was billed."""
    billed = [each for each in fleets if each.billed_ms]
    if not billed:
        return []
    bars = [_bar(each.fleet, [each]) for each in sorted(billed, key=lambda each: (-each.billed_ms, each.fleet))]
    return bars if len(bars) == 1 else [_bar("All fleets", billed), *bars]


def _bar(name: str, fleets: Sequence[FleetTime]) -> TimeBar:
    whole_ms = sum(each.billed_ms for each in fleets)
    used_ms = [sum(getattr(each, f"{use}_ms") for each in fleets) for use in USES]
    begins = accumulate(used_ms, initial=0)
    parts = [
        TimePart(
            use=use,
            words=WORDS[use],
            x=round(WIDTH * begin / whole_ms, 1),
            width=round(WIDTH * used / whole_ms, 1),
            seconds=used / 1000,
            percent=100 * used / whole_ms,
        )
        for use, used, begin in zip(USES, used_ms, begins, strict=False)
    ]
    cost = sum(each.billed_micro_usd for each in fleets)
    return TimeBar(name=name, parts=parts, seconds=whole_ms / 1000, billed_micro_usd=cost)
