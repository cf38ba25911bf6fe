"""The price of a fleet over time, as a line with steps. Everything is geometry in the units of the drawing."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from giornata.protocol.node.fleets import FleetPrice

WIDTH, TOP, HEIGHT = 1000.0, 8.0, 64.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceLine:
    """A line from the oldest price until now. The lowest point of the drawing is the least price."""

    path: str
    began_at: datetime
    least_micro_usd: int
    most_micro_usd: int
    changes: int


def draw_prices(changes: Sequence[FleetPrice], *, now: datetime) -> PriceLine | None:
    """Return the line of these prices, the newest first; None for fewer than two."""
    if len(changes) < 2:
        return None
    prices = [each.micro_usd_per_hour for each in changes]
    least, most, began_at = min(prices), max(prices), changes[-1].at
    whole_s = max((now - began_at).total_seconds(), 1.0)

    def x(at: datetime) -> str:
        return f"{min(WIDTH, WIDTH * (at - began_at).total_seconds() / whole_s):.1f}"

    def y(price: int) -> str:
        return f"{TOP + HEIGHT * (most - price) / max(most - least, 1):.1f}"

    oldest, *later = reversed(changes)
    steps = "".join(f"H{x(each.at)}V{y(each.micro_usd_per_hour)}" for each in later)
    path = f"M0 {y(oldest.micro_usd_per_hour)}{steps}H{WIDTH:.0f}"
    return PriceLine(
        path=path, began_at=began_at, least_micro_usd=least, most_micro_usd=most, changes=len(changes) - 1
    )
