"""A token bucket, which servers may share: so many requests a second on average, and at most that many at once."""

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(slots=True)
class TokenBucket:
    """A bucket of `rate_per_s` tokens that fills at that rate. It is full when it is made. Each request takes one.

    Each of several servers has a copy. A copy gets its share of the tokens that come, and leaves the others to the
    other servers until it knows what these took. `tokens` is below 0 while the servers have taken too much.
    """

    rate_per_s: int
    tokens: float
    filled_at_ms: int
    servers: int = 1
    left: float = 0.0

    def fill(self, at_ms: int) -> None:
        """Add the share of tokens that came since the latest look. A clock that was set back adds none."""
        passed_ms = max(0, at_ms - self.filled_at_ms)
        share = min(self.rate_per_s - self.tokens, passed_ms * self.rate_per_s / 1000 / self.servers)
        self.tokens += share
        self.left += share * (self.servers - 1)
        self.filled_at_ms = at_ms

    def settle(self, taken_elsewhere: float, *, servers: int) -> None:
        """Take what other servers took, in place of what was left to them. From now on so many servers share."""
        self.tokens = min(float(self.rate_per_s), self.tokens + self.left - taken_elsewhere)
        self.servers, self.left = servers, 0.0

    @property
    def wait_s(self) -> float:
        """Seconds until a token is there; 0 when one is. What was taken too much comes back at the whole rate."""
        missing = min(1.0, max(0.0, 1.0 - self.tokens))
        return (max(0.0, -self.tokens) + missing * self.servers) / self.rate_per_s

    @property
    def remaining(self) -> int:
        """Requests that may come at once."""
        return max(0, math.floor(self.tokens))

    @property
    def full_in_s(self) -> int:
        """Whole seconds until the bucket is full."""
        return math.ceil((self.rate_per_s - self.tokens) / self.rate_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedRequests:
    """The requests that one server let through from a bucket since an instant. A count that begins anew has another
    `since_ms`.
    """

    rate_per_s: int
    since_ms: int
    taken: int


RequestCounts = Mapping[tuple[str, str], CountedRequests]
"""Counts of one server by the kind and the id of what is limited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCounts:
    """The counts of another server, and when it told them."""

    at_ms: int
    counts: RequestCounts


def full_bucket(rate_per_s: int, at_ms: int) -> TokenBucket:
    """Return a bucket that is full at `at_ms`."""
    return TokenBucket(rate_per_s=rate_per_s, tokens=float(rate_per_s), filled_at_ms=at_ms)
