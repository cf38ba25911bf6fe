"""How often the fleet loses a node, from what happened lately."""

from giornata.control.context import Context
from giornata.control.ports.store import Transaction
from giornata.domain.attempt import mean_time_between_interruptions_s

WINDOW_MS = 7 * 24 * 3_600_000
# Every heartbeat asks, and a week is not another one after ten seconds.
KEPT_MS = 10_000


def fleet_mtbi_s(tx: Transaction, ctx: Context, *, at_ms: int) -> float:
    """Mean time between interruptions over the latest attempts of the last week, in seconds; up to 10 s old."""
    remembered_s = ctx.memory.mtbi_s(at_ms=at_ms, kept_ms=KEPT_MS)
    if remembered_s is not None:
        return remembered_s
    run_ms, interruptions = tx.attempts.history(since_ms=at_ms - WINDOW_MS)
    mtbi_s = mean_time_between_interruptions_s(observed_run_s=run_ms / 1000, interruptions=interruptions)
    ctx.memory.remember_mtbi(mtbi_s, at_ms=at_ms)
    return mtbi_s
