"""Jobs that may join those at work in the engine: whether there is a place for one, and the claims for them."""

import logging
import random
from collections.abc import Collection, Iterator

from giornata.agent.backoff import delays_s
from giornata.agent.claiming import Asked, Claiming
from giornata.agent.engine_process import EngineProcess
from giornata.agent.held_lease import Monotonic
from giornata.domain.errors import GiornataError
from giornata.protocol.pipe import Seats
from giornata.protocol.work import ClaimReply, Lease

log = logging.getLogger(__name__)

SELDOM = 5


def wanted_key(engine: EngineProcess | None, engaged: Collection[str], *, places: int) -> str | None:
    """The key of a job that could join, or None. `engaged` are the attempts that need the engine, or will.

    Whoever of them is not yet counted by the engine will take one of the places that it has said to be free.
    """
    seats = None if engine is None or not engine.is_alive() else engine.seats
    if seats is None or len(engaged) >= places or not set(engaged) & set(seats.attempts):
        return None
    return seats.key if seats.free > _coming(seats, engaged) else None


def _coming(seats: Seats, engaged: Collection[str]) -> int:
    return len(set(engaged) - set(seats.attempts))


class Companions:
    """Asks for companions while others are at work: every `every_s` and with jitter, and less often the longer there
    are none, down to a fifth of that: a thousand nodes may ask for jobs that nobody has submitted.

    A request whose reply was lost is repeated under its id, for it may have brought a lease. What the server refuses
    is asked again later: whether the node is welcome at all shows when it asks for its next job.
    """

    def __init__(self, claiming: Claiming, *, every_s: float, rng: random.Random, monotonic_s: Monotonic) -> None:
        self._claiming, self._every_s, self._rng, self._now_s = claiming, every_s, rng, monotonic_s
        self._asked: Asked | None = None
        self._pauses = self._fresh_pauses()
        self._delays = claiming.fresh_delays()
        self._not_before_s = monotonic_s()
        self._understood = True

    @property
    def due_in_s(self) -> float:
        """How long not to ask."""
        return max(0.0, self._not_before_s - self._now_s())

    def rest(self, seconds: float) -> None:
        """Do not ask for so long."""
        self._not_before_s = max(self._not_before_s, self._now_s() + seconds)

    def ask(self, key: str | None) -> tuple[Asked, ClaimReply] | None:
        """A claim for a companion and its reply; None when there was none to be made, or no reply."""
        if self.due_in_s > 0 or not self._understood or (self._asked is None and key is None):
            return None
        asked = self._asked = self._asked or self._claiming.ask(key)
        try:
            reply = self._claiming.send(asked)
        except GiornataError as error:
            log.warning("claim of a companion: %s", error)
            self.rest(next(self._delays))
            self._asked = asked if error.retryable else None
            return None
        self._asked, self._delays = None, self._claiming.fresh_delays()
        if reply.lease is not None:
            self._pauses = self._fresh_pauses()
        self.rest(next(self._pauses))
        return asked, reply

    def unanswered(self) -> Asked | None:
        """The request that may still bring a lease; it is somebody else's from now on."""
        asked, self._asked = self._asked, None
        return asked

    def fits(self, asked: Asked, lease: Lease) -> bool:
        """Whether this is what was asked for. A server that knows of no companions gives any job; it is not asked
        again."""
        self._understood = lease.joint_key == asked.claim.joint_key
        return self._understood

    def _fresh_pauses(self) -> Iterator[float]:
        return delays_s(self._rng, first_s=self._every_s, most_s=SELDOM * self._every_s)
