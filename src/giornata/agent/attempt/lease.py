"""The lease as the node knows it, and the calls that are made under it."""

import random
import threading
from collections.abc import Callable
from typing import TypeVar

from giornata.client.retry import Monotonic, Until, delays_s, never, persist
from giornata.domain.errors import LeaseLost, Unauthenticated
from giornata.domain.jobs.attempt import must_stop
from giornata.protocol.node.work import AnyLease

T = TypeVar("T")


class LocalLease:
    """Holds until when the lease is good by the node's own clock, and whether it is lost. Thread-safe.

    `granted_at_s` is when the claim that brought the lease was first *sent*, by the node's monotonic clock.
    `on_lost` is called once, from whichever thread finds out.
    """

    def __init__(
        self,
        lease: AnyLease,
        *,
        granted_at_s: float,
        monotonic_s: Monotonic,
        on_lost: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.lease = lease
        self._monotonic_s = monotonic_s
        self._renewed_at_s = granted_at_s
        self._lease_s = lease.lease_s
        self._on_lost = on_lost
        self._lock = threading.Lock()
        self._why: str | None = None
        self._lost = threading.Event()

    def renewed(self, *, sent_at_s: float, lease_s: float) -> None:
        """Note that the server accepted a heartbeat that was sent at `sent_at_s`."""
        with self._lock:
            self._renewed_at_s = max(self._renewed_at_s, sent_at_s)
            self._lease_s = lease_s

    def lose(self, why: str) -> None:
        """Forbid every further write of the attempt. The first reason stands."""
        with self._lock:
            if self._why is not None:
                return
            self._why = why
        self._lost.set()
        self._on_lost(why)

    def why_lost(self) -> str | None:
        """Return why the lease is lost, or None. Looks at the clock."""
        if self._why is None and self._ran_out():
            self.lose("the lease could not be renewed in time; stopping by the node's own clock")
        return self._why

    def _ran_out(self) -> bool:
        with self._lock:
            renewed_at_s, lease_s = self._renewed_at_s, self._lease_s
        return must_stop(last_renewed_monotonic_s=renewed_at_s, now_monotonic_s=self._monotonic_s(), lease_s=lease_s)

    def check(self) -> None:
        """Raise LeaseLost when nothing more may be written."""
        why = self.why_lost()
        if why is not None:
            raise LeaseLost(why)

    def remaining_s(self) -> float:
        """Return the seconds until the node stops by its own clock."""
        with self._lock:
            return max(0.0, self._renewed_at_s + self._lease_s - self._monotonic_s())

    def wait(self, timeout_s: float) -> None:
        """Sleep, but not beyond the loss of the lease."""
        self._lost.wait(min(timeout_s, self.remaining_s()))


class LeaseCalls:
    """Makes calls under the lease: none after it is lost. A 409 lease-lost reaches every thread of the attempt."""

    def __init__(
        self,
        held: LocalLease,
        *,
        rng: random.Random,
        monotonic_s: Monotonic,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        self.held = held
        self._rng = rng
        self._monotonic_s = monotonic_s
        self._sleep = sleep or held.wait

    def once(self, call: Callable[[AnyLease], T]) -> T:
        """Make the call once. Raises LeaseLost without making it when the lease is lost."""
        self.held.check()
        try:
            return call(self.held.lease)
        except LeaseLost as error:
            self.held.lose(f"the server says: {error}")
            raise
        except Unauthenticated as error:
            self.held.lose(f"the token is no longer good: {error}")
            raise LeaseLost(str(error)) from error

    def persist(self, call: Callable[[AnyLease], T], *, until: Until = never) -> T:
        """Make the call until it succeeds, is refused, the lease is lost, or `until` has passed."""
        return persist(
            lambda: self.once(call),
            delays=delays_s(self._rng),
            sleep=self._sleep,
            monotonic_s=self._monotonic_s,
            until=until,
        )
