"""The buckets of requests a second, of projects and of callers, in the memory of one server process.

Servers of one installation tell each other once a second what they let through, and each takes the others' requests
from its own buckets (ADR 114). No request waits for that.
"""

import math
import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import nlargest

from giornata.domain.rate_limit import CountedRequests, RequestCounts, ServerCounts, TokenBucket, full_bucket

MOST_BUCKETS = 8192
MOST_COUNTS = 1000
"""Names of which a server tells the others at once, the latest first; of further ones each server counts alone."""
ACTIVE_MS = 60_000
"""Milliseconds for which a server tells of a name after the latest request."""
FRESH_MS = 5_000
"""Milliseconds without an exchange after which a server counts alone, and others no longer share with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateStanding:
    """The distance of a request from the tighter of its limits. `wait_s` is 0 when the request may go on.

    `reset_s` is the whole number of seconds until all of the limit is there again.
    """

    limit: int
    remaining: int
    reset_s: int
    wait_s: int = 0


@dataclass(slots=True)
class _NamedBucket:
    """A bucket, and what this server let through of it since `since_ms`. `asked_at_ms` is None where no request of
    the last minute came here.
    """

    bucket: TokenBucket
    since_ms: int
    taken: int = 0
    asked_at_ms: int | None = None

    def count_anew(self, at_ms: int, *, taken: int) -> None:
        self.since_ms, self.taken = at_ms, taken


class RequestRates:
    """Takes tokens for requests; may be used from any thread. Instants are epoch milliseconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buckets: dict[tuple[str, str], _NamedBucket] = {}
        self.server_id = ""  # only the loop `request-counts` gives and reads it
        self._settled_at_ms: int | None = None  # the latest exchange
        self._known: Mapping[str, RequestCounts] = {}  # what others told then, by server
        self._shared: set[tuple[str, str]] = set()

    def take(self, limits: dict[tuple[str, str], int], *, at_ms: int) -> RateStanding:
        """Take a token from the bucket of each name, or from none where one of them is empty. `limits` are tokens a
        second, by name; there is at least one.
        """
        with self._lock:
            named = [self._named(name, rate, at_ms) for name, rate in limits.items()]
            wait_s = max(each.bucket.wait_s for each in named)
            for each in named:
                each.asked_at_ms = at_ms
                if wait_s == 0:
                    each.bucket.tokens -= 1
                    each.taken += 1
            tightest = min((each.bucket for each in named), key=lambda bucket: (bucket.tokens, bucket.rate_per_s))
            return RateStanding(
                limit=tightest.rate_per_s,
                remaining=tightest.remaining,
                reset_s=tightest.full_in_s,
                wait_s=math.ceil(wait_s),
            )

    @property
    def is_exchanging(self) -> bool:
        """True when others may know what this server let through."""
        return self._settled_at_ms is not None

    def counts(self, *, at_ms: int) -> RequestCounts:
        """Return what was let through here of each name that was asked for in the last minute.

        A count that is left out begins anew.
        """
        with self._lock:
            active = {}
            for name, each in self._buckets.items():
                if each.asked_at_ms is not None and at_ms - each.asked_at_ms < ACTIVE_MS:
                    active[name] = each.asked_at_ms
            told = set(nlargest(MOST_COUNTS, active, key=active.__getitem__))
            for name, each in self._buckets.items():
                if name not in told and each.asked_at_ms is not None:
                    each.count_anew(at_ms, taken=0)
                    each.asked_at_ms = active.get(name)
                elif self._is_late(at_ms):  # what came meanwhile is forgiven, but for one bucket
                    each.count_anew(at_ms, taken=min(each.taken, each.bucket.rate_per_s))
            return {name: _counted(self._buckets[name]) for name in told}

    def settle(self, others: Mapping[str, ServerCounts], *, at_ms: int) -> None:
        """Take from the buckets what the others let through since the latest exchange, by server. Of a time in which
        there was no exchange, one bucket at most is taken.
        """
        with self._lock:
            is_anew = self._settled_at_ms is None or self._is_late(at_ms)
            taken: dict[tuple[str, str], int] = defaultdict(int)
            sharing: dict[tuple[str, str], int] = defaultdict(int)
            rates: dict[tuple[str, str], int] = {}
            for server_id, other in others.items():
                known = self._known.get(server_id, {})
                for name, count in other.counts.items():
                    taken[name] += _since_known(count, known.get(name))
                    sharing[name] += at_ms - other.at_ms <= FRESH_MS
                    rates[name] = count.rate_per_s
            for name in taken.keys() | self._shared:
                bucket = self._bucket_to_settle(name, rates.get(name), at_ms)
                if bucket is not None:
                    most = bucket.rate_per_s if is_anew else taken[name]
                    bucket.settle(min(taken[name], most), servers=1 + sharing[name])
            self._shared = {name for name, number in sharing.items() if number}
            self._known = {server_id: other.counts for server_id, other in others.items()}
            self._settled_at_ms = at_ms

    def end_exchange(self) -> None:
        """Forget what others told: nobody asks here, and the next exchange begins anew."""
        with self._lock:
            self._settled_at_ms, self._known = None, {}

    def _is_late(self, at_ms: int) -> bool:
        return self._settled_at_ms is not None and at_ms - self._settled_at_ms > FRESH_MS

    def _named(self, name: tuple[str, str], rate_per_s: int, at_ms: int) -> _NamedBucket:
        found = self._buckets.get(name)
        if found is None or found.bucket.rate_per_s != rate_per_s:
            if len(self._buckets) >= MOST_BUCKETS:
                self._forget_full(at_ms)
            found = self._buckets[name] = _NamedBucket(bucket=full_bucket(rate_per_s, at_ms), since_ms=at_ms)
        bucket = found.bucket
        if bucket.servers > 1 and (self._settled_at_ms is None or self._is_late(at_ms)):
            bucket.settle(bucket.left, servers=1)  # nothing is known of the others
        bucket.fill(at_ms)
        return found

    def _bucket_to_settle(self, name: tuple[str, str], told_rate: int | None, at_ms: int) -> TokenBucket | None:
        """Return the filled bucket of the name; one of the told rate where there is none."""
        found = self._buckets.get(name)
        rate_per_s = told_rate if found is None else found.bucket.rate_per_s
        return None if rate_per_s is None else self._named(name, rate_per_s, at_ms).bucket

    def _forget_full(self, at_ms: int) -> None:
        """Forget the buckets that are full: a new one is full as well."""
        for name, each in list(self._buckets.items()):
            each.bucket.fill(at_ms)
            if each.bucket.tokens >= each.bucket.rate_per_s:
                del self._buckets[name]


def _counted(named: _NamedBucket) -> CountedRequests:
    return CountedRequests(rate_per_s=named.bucket.rate_per_s, since_ms=named.since_ms, taken=named.taken)


def _since_known(count: CountedRequests, known: CountedRequests | None) -> int:
    """Return the requests that came since the known count. A count that began anew counts as a whole, and none for
    more than its server can have let through between two exchanges.
    """
    is_same = known is not None and known.since_ms == count.since_ms
    new = count.taken - known.taken if known is not None and is_same else count.taken
    return min(max(new, 0), count.rate_per_s * (1 + FRESH_MS // 1000))
