"""The buckets of requests a second, of projects and of callers, in the memory of one server process.

Each server has buckets of its own: a project with a limit of 10 may send 10 a second to each of them.
"""

import math
import threading
from dataclasses import dataclass

from giornata.domain.rate_limit import TokenBucket, full_bucket

MOST_BUCKETS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class RateStanding:
    """The distance of a request from the tighter of its limits. `wait_s` is 0 when the request may go on.

    `reset_s` is the whole number of seconds until all of the limit is there again.
    """

    limit: int
    remaining: int
    reset_s: int
    wait_s: int = 0


class RequestRates:
    """Takes tokens for requests; may be used from any thread. Instants are epoch milliseconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buckets: dict[tuple[str, str], TokenBucket] = {}

    def take(self, limits: dict[tuple[str, str], int], *, at_ms: int) -> RateStanding:
        """Take a token from the bucket of each name, or from none where one of them is empty. `limits` are tokens a
        second, by name; there is at least one.
        """
        with self._lock:
            buckets = [self._bucket(name, rate, at_ms) for name, rate in limits.items()]
            wait_s = max(bucket.wait_s for bucket in buckets)
            if wait_s == 0:
                for bucket in buckets:
                    bucket.tokens -= 1
            tightest = min(buckets, key=lambda bucket: (bucket.tokens, bucket.rate_per_s))
            return RateStanding(
                limit=tightest.rate_per_s,
                remaining=tightest.remaining,
                reset_s=tightest.full_in_s,
                wait_s=math.ceil(wait_s),
            )

    def _bucket(self, name: tuple[str, str], rate_per_s: int, at_ms: int) -> TokenBucket:
        found = self._buckets.get(name)
        if found is None or found.rate_per_s != rate_per_s:
            if len(self._buckets) >= MOST_BUCKETS:
                self._forget_full(at_ms)
            found = self._buckets[name] = full_bucket(rate_per_s, at_ms)
        found.fill(at_ms)
        return found

    def _forget_full(self, at_ms: int) -> None:
        """Forget the buckets that are full: a new one is full as well."""
        for name, bucket in list(self._buckets.items()):
            bucket.fill(at_ms)
            if bucket.tokens >= bucket.rate_per_s:
                del self._buckets[name]
