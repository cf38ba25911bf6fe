"""Calls that an attempt makes, each repeated for as long as the lease holds."""

import random
from collections.abc import Callable
from typing import TypeVar

from giornata.agent.backoff import delays_s
from giornata.agent.held_lease import HeldLease, Monotonic
from giornata.domain.errors import GiornataError, LeaseLost, Unauthenticated
from giornata.protocol.work import Lease

T = TypeVar("T")

Until = Callable[[], float | None]
"""When to give up, by the monotonic clock; None for never."""


def _never() -> None:
    return None


class Calls:
    """Makes calls under the lease: none after it is lost, and a 409 lease-lost is told to everybody at once."""

    def __init__(
        self,
        held: HeldLease,
        *,
        rng: random.Random,
        monotonic_s: Monotonic,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        self.held = held
        self._rng = rng
        self._monotonic_s = monotonic_s
        self._sleep = sleep or held.wait

    def once(self, call: Callable[[Lease], T]) -> T:
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

    def persist(self, call: Callable[[Lease], T], *, until: Until = _never) -> T:
        """Make the call until it succeeds, is refused, or the lease is lost.

        Only errors that may pass are met with another try. `until` is asked anew each time, since the order to
        leave may come meanwhile; after the moment that it gives (monotonic) the last error is raised.
        """
        delays = delays_s(self._rng)
        while True:
            try:
                return self.once(call)
            except GiornataError as error:
                until_s = until()
                if not error.retryable or (until_s is not None and self._monotonic_s() >= until_s):
                    raise
            delay_s = next(delays)
            self._sleep(delay_s if until_s is None else min(delay_s, max(0.0, until_s - self._monotonic_s())))
