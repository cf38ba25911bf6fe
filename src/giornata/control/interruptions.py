"""How often the fleet loses a node, from what happened lately."""

from giornata.control.ports.store import Transaction
from giornata.domain.cadence import mean_time_between_interruptions_s

WINDOW_MS = 7 * 24 * 3_600_000


def fleet_mtbi_s(tx: Transaction, *, at_ms: int) -> float:
    """Mean time between interruptions over the latest attempts of the last week, in seconds."""
    run_ms, interruptions = tx.attempts.history(since_ms=at_ms - WINDOW_MS)
    return mean_time_between_interruptions_s(observed_run_s=run_ms / 1000, interruptions=interruptions)
