"""Nodes ask for work."""

from collections.abc import Collection
from typing import Any

from tests.contract.model.calls import DIED, TrackedLease
from tests.contract.model.model_rig import PLACES, NodePlace, Row
from tests.contract.model.node_actions import NodeActions
from tests.contract.model.quota_checks import full_projects
from tests.contract.model.standing import Standing

from giornata.control.attempts.claiming.claim import claim_once
from giornata.domain.jobs.routing import Candidate, rank
from giornata.protocol.node.work import Claim
from giornata.protocol.project.admin import ROOT_PROJECT
from giornata.protocol.specs import AUDIT_KIND

MODELS = ("some/model", "another/model")
KEYS = tuple(f"{model}|||" for model in MODELS)  # as nodes name what they hold


class ClaimActions(NodeActions):
    """Actions of nodes that want a lease."""

    def claim(self, a: int, b: int) -> None:
        """One of the claims' replies in eight is lost."""
        place = PLACES[a % len(PLACES)]
        incarnation = self.actors.incarnations.get(place.number, 0)
        request_id = f"request-{next(self.actors.numbers):07d}"
        self.actors.requests.append((place, incarnation, request_id, None))
        self._ask(place, incarnation, request_id, held_models=KEYS[: b % 2], lost=b % 8 == 0, again=b % 3 == 0)

    def claim_again(self, a: int, b: int) -> None:
        """The same request, maybe long after."""
        if self.actors.requests:
            place, incarnation, request_id, key = self.actors.requests[-1 - a % min(len(self.actors.requests), 1 + b)]
            self._ask(place, incarnation, request_id, joint_key=key, lost=False, again=False)

    def replace_process(self, a: int, b: int) -> None:
        """What the old one holds lapses, or is taken over by the new one."""
        number = a % len(PLACES)
        self.actors.incarnations[number] = self.actors.incarnations.get(number, 0) + 1

    def _ask(
        self,
        place: NodePlace,
        incarnation: int,
        request_id: str,
        *,
        held_models: tuple[str, ...] = (),
        joint_key: str | None = None,
        lost: bool,
        again: bool,
    ) -> None:
        if self.muted(place):
            return
        node = place.process(incarnation)
        claim = Claim(
            request_id=request_id, node=node, kinds=place.kinds, held_models=held_models, joint_key=joint_key
        )
        earlier = self._of_request(node.node_id, request_id)
        due = None if self.is_full(node.node_id) else self._first_of_queue(place, held_models, joint_key)
        reply = self.call(lambda: claim_once(self.ctx, place.caller, claim), again=again)
        if reply is DIED:
            return
        if self.exact and earlier is None:
            assert (reply.lease and reply.lease.job_id) == (due and due.id), f"{reply}, due was {due}"
        elif self.exact:
            alive = earlier.id if earlier.ended_at_ms is None else None
            assert (reply.lease and reply.lease.attempt_id) == alive, f"{reply} to a repeat of {earlier}"
        if reply.lease is not None and not lost:
            self._told(place, reply.lease)

    def _told(self, place: NodePlace, lease: Any) -> None:
        assert self.actors.tokens.setdefault(lease.attempt_id, lease.token) == lease.token
        for download in [it.download for it in (*lease.inputs, *lease.checkpoints)]:
            if (self._project_of(lease.job_id), download.sha256) in self.rig.harmed:
                continue
            key = download.request.url.removeprefix("memory:///")
            kept = self.rig.blobs.objects.get(key)
            # Others may prune a checkpoint meanwhile; nobody may when nobody else is at work.
            assert kept is not None or not self.exact, f"a lease on bytes that are gone: {download}"
            assert kept is None or kept.sha256 == download.sha256
        held = TrackedLease(
            attempt_id=lease.attempt_id,
            job_id=lease.job_id,
            number=lease.attempt,
            project=self._project_of(lease.job_id),
            token=lease.token,
            place=place,
        )
        (self.actors.audit_runs if lease.kind == AUDIT_KIND else self.actors.held).append(held)

    def _of_request(self, node_id: str, request_id: str) -> Row | None:
        if not self.exact:
            return None
        found = [row for row in self.checker.now.attempts if (row.node_id, row.request_id) == (node_id, request_id)]
        return found[0] if found else None

    def _first_of_queue(
        self,
        place: NodePlace,
        held_models: tuple[str, ...],
        joint_key: str | None,
        *,
        but: Collection[str] = (),
        standing: Standing | None = None,
    ) -> Row | None:
        """Whom the claim has to hand out: worked out from the whole table, by the rules' own order."""
        if not self.exact:
            return None
        kinds = (standing or Standing(self.rig, self.checker.now)).kinds(place)
        banned = {row.job_id for row in self.checker.now.bans if row.machine_id == place.machine}
        full = full_projects(self.rig, self.checker.now, taken=but)
        fit = [
            row
            for row in self.checker.now.jobs
            if row.state == "queued" and row.kind in kinds and row.id not in banned and row.id not in but
            if (row.project_id not in full or row.billed_to is not None)
            and row.only_machine_id in {None, place.machine}
            and place.project in {ROOT_PROJECT, row.project_id}
            and joint_key in {None, row.joint_key}
        ]
        of_users = [row for row in fit if row.kind != AUDIT_KIND]  # whom no audit delays
        return min(of_users or fit, key=lambda row: _rank(row, held_models), default=None)

    def _project_of(self, job_id: str) -> str:
        # Not by what users know: another thread's job may be handed out before its owner was told of it.
        with self.rig.store.read() as tx:
            job = tx.jobs.get(job_id)
        assert job is not None, f"{job_id} was handed out, and there is no such job"
        return job.project_id


def _rank(row: Row, held_models: tuple[str, ...]) -> Any:
    return rank(
        Candidate(
            job_id=row.id,
            pinned=row.only_machine_id is not None,
            interrupted=bool(row.interrupted),
            priority=row.priority,
            turn=row.turn,
            model_held=row.only_machine_id is None and row.model_key in held_models,
        )
    )
