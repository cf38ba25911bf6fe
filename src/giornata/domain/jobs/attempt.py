"""The times of an attempt: its lease, and the interval between its checkpoints.

Lease times are epoch milliseconds of the server's clock unless the name says otherwise.
"""

import math

RENEWALS_PER_LEASE = 3
# The clocks of servers differ by less than this; a larger difference means that a clock was set.
CLOCKS_AGREE_MS = 5_000
LEASES_BESIDE_PLACES = 3
"""Leases that a node may hold beside those at work: what it uploads still, and the pictures that it draws next."""


def renew_every_s(lease_s: float) -> float:
    """A node renews at a third of the lease, so that two lost beats in a row cost nothing."""
    return lease_s / RENEWALS_PER_LEASE


def lease_expires_at_ms(*, now_ms: int, lease_s: float) -> int:
    """Return the end of a lease that is granted or renewed now."""
    return now_ms + round(lease_s * 1000)


def must_stop(*, last_renewed_monotonic_s: float, now_monotonic_s: float, lease_s: float) -> bool:
    """Return True when a node that could not renew has to stop by its own clock.

    Counted from the moment the last *successful* renewal was sent, never from when its reply came: the server
    started its lease no earlier, so the node stops no later than the server gives the job away.
    """
    return now_monotonic_s - last_renewed_monotonic_s >= lease_s


def most_leases(places: int) -> int:
    """Return how many leases a node of so many places may hold at one time. Nodes ask for no more; servers give no
    more.
    """
    return places + LEASES_BESIDE_PLACES


# Before a fleet has a history of its own: the mean uptime of interrupted runs in a published week of 100
# consumer nodes was 35 h (docs/benchmark-log.md names the source).
PRIOR_MTBI_S = 35 * 3600.0
PRIOR_WEIGHT_INTERRUPTIONS = 1.0


def mean_time_between_interruptions_s(*, observed_run_s: float, interruptions: int) -> float:
    """Estimate of the mean time between interruptions, from what the fleet has seen.

    A Gamma-Poisson posterior mean: the prior counts as one interruption in PRIOR_MTBI_S, so an empty history
    gives the prior and a long one gives observed_run_s / interruptions.
    """
    weight = PRIOR_WEIGHT_INTERRUPTIONS
    return (observed_run_s + weight * PRIOR_MTBI_S) / (interruptions + weight)


def checkpoint_interval_s(*, cost_s: float, mtbi_s: float, max_at_risk_s: float) -> float:
    """Seconds between checkpoints that cost `cost_s` each.

    Young's first-order optimum sqrt(2 · cost · MTBI) (J. W. Young, CACM 17(9), 1974), bounded above by
    `max_at_risk_s`: an interruption should lose no more than that, even where the optimum is longer. Never below
    `cost_s`, at which the node would do nothing but write checkpoints.
    """
    if cost_s < 0 or mtbi_s <= 0 or max_at_risk_s <= 0:
        raise ValueError("cost_s >= 0, mtbi_s > 0 and max_at_risk_s > 0 are required")
    return max(cost_s, min(math.sqrt(2.0 * cost_s * mtbi_s), max_at_risk_s))
