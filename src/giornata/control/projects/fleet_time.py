"""The billed time of the last day by its use. A loop adds it up by the hour: no page reads a day's attempts."""

import time
from collections.abc import Sequence

from giornata.control.context import Context
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.money_store import FleetTime
from giornata.control.projects.read_costs import splits_by_fleet
from giornata.domain.billing.costs import PARTS, Interval, add

LOOP_NAME = "fleet-time"
EVERY_S = 60.0
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
SETTLES_MS = 600_000
"""An hour is added up again until so long after its end: nodes report their last steps late."""
RESTS = 50
"""The loop rests so many times as long as it took, if that is longer than its period: requests wait meanwhile."""


def sum_fleet_time(ctx: Context) -> None:
    """Add up the hours that are not settled, at most a day of them, each in a transaction of its own."""
    now_ms, began_s = ctx.clock.now_ms(), time.perf_counter()
    if now_ms in ctx.memory.fleet_time_rests:
        return
    settled_ms = _hour_of(now_ms - SETTLES_MS)
    with ctx.store.read() as tx:
        known_ms = tx.costs.last_fleet_hour_ms()
    first_ms = max(_hour_of(now_ms - DAY_MS), min(settled_ms, known_ms or 0))
    for hour_ms in range(first_ms, now_ms, HOUR_MS):
        with ctx.store.read() as tx:
            found = _of_hour(tx, Interval(from_ms=hour_ms, to_ms=min(hour_ms + HOUR_MS, now_ms)))
        with ctx.store.begin() as tx:
            tx.costs.keep_fleet_time({hour_ms: found}, kept_since_ms=now_ms - DAY_MS - HOUR_MS)
    rests_s = RESTS * (time.perf_counter() - began_s)
    ctx.memory.fleet_time_rests = range(now_ms, now_ms + round((rests_s - EVERY_S) * 1000))


def last_day(tx: Transaction, *, at_ms: int) -> Sequence[FleetTime]:
    """Return the time of each fleet in the last 24 hours, from the first full hour on. One statement."""
    return tx.costs.fleet_time(since_ms=at_ms - DAY_MS)


def _of_hour(tx: Transaction, hour: Interval) -> list[FleetTime]:
    found = []
    for fleet, splits in sorted(splits_by_fleet(tx, hour).items()):
        whole = add(splits)
        if whole.billed_ms:
            parts = {f"{part}_ms": getattr(whole, f"{part}_ms") for part in PARTS}
            found.append(FleetTime(fleet=fleet, billed_micro_usd=whole.billed_micro_usd, **parts))
    return found


def _hour_of(at_ms: int) -> int:
    return at_ms // HOUR_MS * HOUR_MS
