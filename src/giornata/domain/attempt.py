"""Lease arithmetic. All times are epoch milliseconds of the server's clock unless said otherwise."""

RENEWALS_PER_LEASE = 3
# The clocks of servers differ by less than this; a larger difference means that a clock was set.
CLOCKS_AGREE_MS = 5_000


def renew_every_s(lease_s: float) -> float:
    """A node renews at a third of the lease, so that two lost beats in a row cost nothing."""
    return lease_s / RENEWALS_PER_LEASE


def lease_expires_at_ms(*, now_ms: int, lease_s: float) -> int:
    """When a lease granted or renewed now runs out."""
    return now_ms + round(lease_s * 1000)


def must_stop(*, last_renewed_monotonic_s: float, now_monotonic_s: float, lease_s: float) -> bool:
    """Whether a node that could not renew has to stop by its own clock.

    Counted from the moment the last *successful* renewal was sent, never from when its reply came: the server
    started its lease no earlier, so the node stops no later than the server gives the job away.
    """
    return now_monotonic_s - last_renewed_monotonic_s >= lease_s
