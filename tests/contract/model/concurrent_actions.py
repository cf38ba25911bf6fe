"""What several nodes send at one moment, and a server may deal with in one go."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeVar

from tests.contract.model.audit_actions import AuditActions
from tests.contract.model.beside import JOINT_KEYS, Beside
from tests.contract.model.calls import DIED, TrackedLease
from tests.contract.model.claim_actions import KEYS
from tests.contract.model.end_actions import EndActions
from tests.contract.model.end_at_once import EndAtOnce
from tests.contract.model.model_rig import PLACES, NodePlace, Row
from tests.contract.model.order_kind_actions import OrderKindActions
from tests.contract.model.quota_actions import QuotaActions
from tests.contract.model.standing import Key, Standing
from tests.contract.model.sweep_actions import SweepActions

from giornata.control.attempts.claiming.claim import Asked, claim_each
from giornata.control.attempts.heartbeat import Beat, heartbeat_each
from giornata.domain.errors import GiornataError, LeaseLost
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.work import Claim, Heartbeat

T = TypeVar("T")


class Everything(Beside, AuditActions, EndActions, EndAtOnce, QuotaActions, SweepActions, OrderKindActions):
    """All that a schedule is made of."""

    def claim_together(self, a: int, b: int) -> None:
        """One claim of each of some nodes."""
        places = [it for it in _some(PLACES, a, b) if not self.muted(it)]
        joint_keys = [*JOINT_KEYS, None, None, None]
        asks = [
            (place, self._claim_of(place, KEYS[: (a + n) % 2], joint_keys[(a + b + n) % len(joint_keys)]))
            for n, place in enumerate(places)
        ]
        if not asks:
            return
        due = self._handed_out(asks)
        asked = [Asked(caller=place.caller, claim=claim) for place, claim in asks]
        outcome = self.call(lambda: claim_each(self.ctx, asked), again=b % 3 == 0, several=len(asks))
        if outcome is DIED:
            return
        for (place, claim), reply, job_id in zip(asks, outcome, due, strict=True):
            assert not isinstance(reply, GiornataError), f"{reply!r} to {claim}"
            assert not self.exact or (reply.lease and reply.lease.job_id) == job_id, f"{reply}, due was {job_id}"
            if reply.lease is not None and b % 8:
                self._told(place, reply.lease)

    def beat_together(self, a: int, b: int) -> None:
        """Of some of the latest leases, good or lost, each once."""
        latest = list({it.attempt_id: it for it in self.actors.held[-8:]}.values())
        held = [it for it in _some(latest, a, b) if not self.muted(it.place)]
        if not held:
            return
        said = [Heartbeat(step=2 * b + n, phase="train") for n in range(len(held))]
        beats = [Beat(attempt_id=it.attempt_id, said=each) for it, each in zip(held, said, strict=True)]
        over, late = self._ended(held), [self.late(it) for it in held]
        outcome = self.call(
            lambda: heartbeat_each(self.ctx, beats), again=b % 3 == 0, lasting=True, several=len(held)
        )
        if outcome is DIED or not self.exact:
            return
        for it, answer, is_over, is_late in zip(held, outcome, over, late, strict=True):
            lost = isinstance(answer, LeaseLost)
            assert lost if is_over or is_late is Reason.TOO_SLOW else lost <= (is_late is not None), (it, answer)
        if all(over):
            self.unchanged()

    def _claim_of(self, place: NodePlace, held_models: tuple[str, ...], joint_key: str | None) -> Claim:
        incarnation = self.actors.incarnations.get(place.number, 0)
        request_id = f"request-{next(self.actors.numbers):07d}"
        self.actors.requests.append((place, incarnation, request_id, joint_key))
        node = place.process(incarnation)
        return Claim(
            request_id=request_id, node=node, kinds=place.kinds, held_models=held_models, joint_key=joint_key
        )

    def _handed_out(self, asks: Sequence[tuple[NodePlace, Claim]]) -> list[str | None]:
        """Which job each has to get: as if they had come one after the other, and nobody gets another's.

        Who was refused a kind for the sake of one that then did not begin it comes once more, behind all others.
        """
        given: dict[int, Row] = {}
        left = [n for n, (_, claim) in enumerate(asks) if not self.is_full(claim.node.node_id)]
        while left and self.exact:
            begun = Counter(self._of_machine(asks, given))
            standing = Standing(self.rig, self.checker.now, begun=begun)
            crowded: dict[int, set[Key]] = {}
            for n in left:
                place, claim = asks[n]
                taken = {row.id for row in given.values()}
                crowded[n] = standing.crowded(place)
                row = self._first_of_queue(place, claim.held_models, claim.joint_key, but=taken, standing=standing)
                if row is not None:
                    given[n] = row
            unused = standing.admitted - (Counter(self._of_machine(asks, given)) - begun)
            left = [n for n in left if n not in given and crowded[n] & set(unused)]
        return [given[n].id if n in given else None for n in range(len(asks))]

    def _of_machine(self, asks: Sequence[tuple[NodePlace, Claim]], given: Mapping[int, Row]) -> list[Key]:
        return [(asks[n][0].machine, row.kind) for n, row in given.items()]

    def _ended(self, held: Sequence[TrackedLease]) -> list[bool]:
        attempts = self.checker.attempts
        return [self.exact and attempts[it.attempt_id].ended_at_ms is not None for it in held]


def _some(things: Sequence[T], a: int, b: int) -> list[T]:
    """One to four of them, each once, from anywhere."""
    start = a % len(things) if things else 0
    return [*things[start:], *things[:start]][: 1 + b % 4]
