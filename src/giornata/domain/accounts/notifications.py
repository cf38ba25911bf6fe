"""Rules of webhooks: which events a webhook gets, when a failed delivery is tried again, when a digest is due."""

from collections.abc import Collection
from enum import StrEnum

EVERYTHING = "*"
GROUP = ".*"
HOUR_S = 3600.0
DAY_MS = 24 * 3600 * 1000
DIGEST_AT_MS = 7 * 3600 * 1000
"""A daily digest is due at 07:00 UTC."""
JITTER = 0.2
RETRY_DELAYS_S = (
    5.0,
    60.0,
    300.0,
    1800.0,
    2 * HOUR_S,
    5 * HOUR_S,
    10 * HOUR_S,
    14 * HOUR_S,
    16 * HOUR_S,
    24 * HOUR_S,
)
"""Pauses between the tries of a delivery: three days in all, in the manner of the Standard Webhooks specification."""


class DeliveryState(StrEnum):
    """States of a delivery. A dead delivery is tried again only when a user replays it."""

    PENDING = "pending"
    SENDING = "sending"
    DELIVERED = "delivered"
    DEAD = "dead"


def matches(patterns: Collection[str], event: str) -> bool:
    """Return True when one of the patterns names the event: by its type, by its group (`job.*`), or by `*`."""
    group = event.partition(".")[0] + GROUP
    return event in patterns or group in patterns or EVERYTHING in patterns


def retry_delay_s(tries: int, *, draw: float) -> float | None:
    """Return the pause after so many failed tries; None when the delivery is dead.

    `draw` is uniform in [0, 1). It moves the pause by up to a fifth, so that deliveries that failed together do not
    return together.
    """
    if tries > len(RETRY_DELAYS_S):
        return None
    return RETRY_DELAYS_S[tries - 1] * (1 - JITTER + 2 * JITTER * draw)


def next_digest_ms(at_ms: int) -> int:
    """Return the first instant after `at_ms` at which a daily digest is due, in epoch milliseconds."""
    return (at_ms - DIGEST_AT_MS) // DAY_MS * DAY_MS + DAY_MS + DIGEST_AT_MS
