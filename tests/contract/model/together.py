"""What several nodes send at one moment, and a server may deal with in one go."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tests.contract.model.calls import DIED, Held
from tests.contract.model.house import PLACES, Place
from tests.contract.model.town_deeds import KEYS, Deeds

from giornata.control.claim import claim_once
from giornata.control.context import Caller, Context
from giornata.control.heartbeat import heartbeat
from giornata.domain.errors import GiornataError, LeaseLost
from giornata.protocol.work import Claim, Heartbeat

T = TypeVar("T")
Answer = Any  # a reply, or the error that it would have been


class Everything(Deeds):
    """All that a schedule is made of."""

    def claim_together(self, a: int, b: int) -> None:
        """One claim of each of some nodes; in one case of four the first of them comes twice."""
        places = [it for it in _some(PLACES, a, b) if not self.muted(it)]
        asks = [(place, self._claim_of(place, held_models=KEYS[: (a + n) % 2])) for n, place in enumerate(places)]
        if b % 4 == 0:
            asks += asks[:1]
        due = self._handed_out(asks)
        claims = [(place.caller, claim) for place, claim in asks]
        outcome = self.call(lambda: claim_each(self.ctx, claims), several=len(asks))
        if outcome is DIED:
            return
        for (place, claim), reply, job_id in zip(asks, outcome, due, strict=True):
            assert not isinstance(reply, GiornataError), f"{reply!r} to {claim}"
            assert not self.exact or (reply.lease and reply.lease.job_id) == job_id, f"{reply}, due was {job_id}"
            if reply.lease is not None and b % 8:
                self._told(place, reply.lease)

    def beat_together(self, a: int, b: int) -> None:
        """Of some of the latest leases, good or lost; in one case of four the first beat comes twice."""
        held = [it for it in _some(self.town.held[-8:], a, b) if not self.muted(it.place)]
        if b % 4 == 0:
            held += held[:1]
        if not held:
            return
        beats = [(it.attempt_id, Heartbeat(step=2 * b + n, phase="train")) for n, it in enumerate(held)]
        ended = self._ended(held)
        outcome = self.call(lambda: beat_each(self.ctx, beats), again=b % 3 == 0, lasting=True, several=len(held))
        if outcome is DIED or not self.exact:
            return
        for it, answer, is_over in zip(held, outcome, ended, strict=True):
            assert isinstance(answer, LeaseLost) if is_over else not isinstance(answer, GiornataError), (it, answer)
        if all(ended):
            self.unchanged()

    def _claim_of(self, place: Place, *, held_models: tuple[str, ...]) -> Claim:
        incarnation = self.town.incarnations.get(place.number, 0)
        request_id = f"request-{next(self.town.numbers):07d}"
        self.town.requests.append((place, incarnation, request_id))
        node = place.process(incarnation)
        return Claim(request_id=request_id, node=node, kinds=place.kinds, held_models=held_models)

    def _handed_out(self, asks: Sequence[tuple[Place, Claim]]) -> list[str | None]:
        """Which job each has to get: as if they had come one after the other, and nobody gets another's."""
        given: dict[str, str | None] = {}
        for place, claim in asks:
            if claim.request_id not in given:
                taken = {job_id for job_id in given.values() if job_id is not None}
                row = self._first_of_queue(place, claim.held_models, but=taken)
                given[claim.request_id] = None if row is None else row.id
        return [given[claim.request_id] for _, claim in asks]

    def _ended(self, held: Sequence[Held]) -> list[bool]:
        attempts = self.witness.attempts
        return [self.exact and attempts[it.attempt_id].ended_at_ms is not None for it in held]


def claim_each(ctx: Context, asks: Sequence[tuple[Caller, Claim]]) -> list[Answer]:
    """What each of the claims is answered."""
    return [_answer(lambda: claim_once(ctx, caller, claim)) for caller, claim in asks]  # noqa: B023 - called at once


def beat_each(ctx: Context, beats: Sequence[tuple[str, Heartbeat]]) -> list[Answer]:
    """What each of the heartbeats is answered."""
    return [_answer(lambda: heartbeat(ctx, attempt_id, beat)) for attempt_id, beat in beats]  # noqa: B023


def _answer(deed: Callable[[], Answer]) -> Answer:
    try:
        return deed()
    except GiornataError as refusal:
        return refusal


def _some(things: Sequence[T], a: int, b: int) -> list[T]:
    """One to four of them, each once, from anywhere."""
    start = a % len(things) if things else 0
    return [*things[start:], *things[:start]][: 1 + b % 4]
