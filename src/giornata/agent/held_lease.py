"""The lease as the node knows it: until when it holds by the node's own clock, and whether it is lost."""

import threading
from collections.abc import Callable

from giornata.domain.attempt import must_stop
from giornata.domain.errors import LeaseLost
from giornata.protocol.work import Lease

Monotonic = Callable[[], float]


def _nobody(_: str) -> None:
    """Default listener."""


class HeldLease:
    """Shared by the threads of an attempt; each asks it before it writes.

    `granted_at_s` is when the claim that brought the lease was first *sent*, by the node's monotonic clock.
    `on_lost` is called once, from whichever thread finds out.
    """

    def __init__(
        self, lease: Lease, *, granted_at_s: float, monotonic_s: Monotonic, on_lost: Callable[[str], None] = _nobody
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
        """A heartbeat that was sent at `sent_at_s` was accepted."""
        with self._lock:
            self._renewed_at_s = max(self._renewed_at_s, sent_at_s)
            self._lease_s = lease_s

    def lose(self, why: str) -> None:
        """The attempt may write nothing more. The first reason stands."""
        with self._lock:
            if self._why is not None:
                return
            self._why = why
        self._lost.set()
        self._on_lost(why)

    def why_lost(self) -> str | None:
        """Why nothing more may be written, or None. Looks at the clock."""
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
        """Seconds until the node would stop by its own clock."""
        with self._lock:
            return max(0.0, self._renewed_at_s + self._lease_s - self._monotonic_s())

    def wait(self, timeout_s: float) -> None:
        """Sleep, but not beyond the loss of the lease."""
        self._lost.wait(min(timeout_s, self.remaining_s()))
