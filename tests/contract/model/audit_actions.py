"""Audits are ordered, run and judged: by sound machines, and by one that has wrong results at times.

Only where nobody else is at work: there every verdict can be foretold.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tests.contract.model.actions import DAY_S, Actions
from tests.contract.model.calls import DIED, TrackedLease
from tests.contract.model.invariants import InvariantChecker
from tests.contract.model.model_rig import LIAR, PLACES, ModelRig, Row
from tests.contract.model.node_actions import LATEST, named

from giornata.control.attempts.auditing.settle_audits import settle_audits
from giornata.control.attempts.ending.complete import complete
from giornata.control.attempts.ending.reported_ends import fail, release
from giornata.control.attempts.heartbeat import heartbeat
from giornata.control.jobs.stop_job import expire_deadlines
from giornata.domain.jobs.audits import AuditPolicy
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.work import CompleteAttempt, FailAttempt, Heartbeat, ReleaseAttempt
from giornata.protocol.specs import AUDIT_KIND

ALWAYS = AuditPolicy(share=2.0)  # also of a machine that is audited less often than others


class AuditActions(Actions):
    """Actions of machines that train and that repeat what others have trained, and of the loop that judges them."""

    def commit_audited(self, a: int, b: int) -> None:
        """A node commits the next step of a training job, and the stretch is audited if the machine may be."""
        training = [it for it in self._alive(self.actors.held) if self.checker.jobs[it.job_id].kind == "train"]
        if not training:
            return
        held = training[-1 - a % min(len(training), LATEST)]
        step = self.checker.jobs[held.job_id].step + 1
        data = _result(held.job_id, step, lie=held.place.machine == LIAR and b % 2 == 1)
        upload_id = self._sent(held, data)
        if upload_id is DIED:
            return
        if b % 8 == 4:
            self.dying = a // 2
        with self._audited_always():
            self._commit_step(held, step, data, upload_id, honest=True, again=b % 3 == 0)

    @contextmanager
    def _audited_always(self) -> Iterator[None]:
        was = self.rig.ctx
        self.rig.ctx = replace(was, policy=replace(was.policy, audits=ALWAYS))
        try:
            yield
        finally:
            self.rig.ctx = was

    def settle_audits(self, a: int, b: int) -> None:
        """The loop."""
        if self.exact:
            self.call(lambda: settle_audits(self.ctx))

    def run_audit(self, a: int, b: int) -> None:
        """A machine that repeats a stretch has its result, or comes to grief; where none does, one asks for work."""
        if not self.exact:
            return
        running = self._alive(self.actors.audit_runs)
        if not running:
            self._ask_for_audit(a)
            return
        held = running[a % len(running)]
        if b % 8 == 0:
            self._come_to_grief(held, b // 8)
            return
        spec = self._spec_of(held.job_id)
        lie = held.place.machine == LIAR and b % 2 == 1
        told = {"sha256": named(_result(spec["job"], spec["to_step"], lie=lie))["sha256"], "files": {}}
        report = CompleteAttempt(step=spec["to_step"], summary={} if b % 16 == 1 else told)
        self.write(held, lambda: complete(self.ctx, held.attempt_id, report), end=Reason.SUCCEEDED, again=b % 3 == 0)

    def _ask_for_audit(self, a: int) -> None:
        """Whoever was drawn asks; nobody was: somebody who may be."""
        waiting = {row.only_machine_id for row in self.checker.now.jobs if row.kind == AUDIT_KIND}
        able = [place for place in PLACES if AUDIT_KIND in place.kinds]
        drawn = [place for place in able if place.machine in waiting] or able
        self.claim(drawn[a % len(drawn)].number, 1)

    def _come_to_grief(self, held: TrackedLease, b: int) -> None:
        if b % 3 == 0:
            report = FailAttempt(reason=Reason.CRASHED, message="Segmentation fault", exit_code=-11)
            self.write(held, lambda: fail(self.ctx, held.attempt_id, report), end=Reason.CRASHED, again=True)
        elif b % 3 == 1:
            given_back = ReleaseAttempt(reason=Reason.PREEMPTED, step=1)
            self.write(held, lambda: release(self.ctx, held.attempt_id, given_back), end=Reason.PREEMPTED, again=True)
        else:
            beat = Heartbeat(step=1, phase="train", metrics={})
            self.write(held, lambda: heartbeat(self.ctx, held.attempt_id, beat), again=True)

    def _alive(self, leases: list[TrackedLease]) -> list[TrackedLease]:
        attempts = self.checker.attempts
        return [it for it in leases if self.exact and attempts[it.attempt_id].ended_at_ms is None]

    def _spec_of(self, job_id: str) -> dict[str, Any]:
        with self.rig.store.read() as tx:
            job = tx.jobs.get(job_id)
        assert job is not None
        return dict(job.spec)


def give_up_audits(rig: ModelRig, checker: InvariantChecker) -> None:
    """Nobody has time for them any more: each ends, and none is left over."""
    if not checker.now.audits:
        return
    for _ in range(2):
        rig.clock.advance_s(rig.ctx.policy.audits.waits_s + DAY_S)
        expire_deadlines(rig.ctx)
        settle_audits(rig.ctx)
    left: list[Row] = [row for row in checker.look().audits if row.decided_at_ms is None]
    assert not left, f"audits that never end: {left}"


def _result(job_id: str, step: int, *, lie: bool) -> bytes:
    """The bytes of a checkpoint: right ones depend on nothing but the job and the step."""
    return f"{job_id} {step}{' lie' if lie else ''}".encode()
