"""A token bucket: so many requests a second on average, and at most that many at once."""

import math
from dataclasses import dataclass


@dataclass(slots=True)
class TokenBucket:
    """A bucket of `rate_per_s` tokens that fills at that rate. It is full when it is made. Each request takes one."""

    rate_per_s: int
    tokens: float
    filled_at_ms: int

    def fill(self, at_ms: int) -> None:
        """Add the tokens that came since the latest look. A clock that was set back adds none."""
        passed_ms = max(0, at_ms - self.filled_at_ms)
        self.tokens = min(float(self.rate_per_s), self.tokens + passed_ms * self.rate_per_s / 1000)
        self.filled_at_ms = at_ms

    @property
    def wait_s(self) -> float:
        """Seconds until a token is there; 0 when one is."""
        return max(0.0, 1.0 - self.tokens) / self.rate_per_s

    @property
    def remaining(self) -> int:
        """Requests that may come at once."""
        return math.floor(self.tokens)

    @property
    def full_in_s(self) -> int:
        """Whole seconds until the bucket is full."""
        return math.ceil((self.rate_per_s - self.tokens) / self.rate_per_s)


def full_bucket(rate_per_s: int, at_ms: int) -> TokenBucket:
    """Return a bucket that is full at `at_ms`."""
    return TokenBucket(rate_per_s=rate_per_s, tokens=float(rate_per_s), filled_at_ms=at_ms)
