"""Audits are ordered, run and judged: by sound machines, and by one that has wrong results at times.

Only where nobody else is at work: there every verdict can be foretold.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from tests.contract.model.actions import DAY_S, Actions
from tests.contract.model.calls import DIED, TrackedLease
from tests.contract.model.invariants import InvariantChecker
from tests.contract.model.model_rig import LIAR, PLACES, ModelRig, NodePlace, Row, owner
from tests.contract.model.node_actions import LATEST, named

from giornata.control.attempts.auditing.settle_audits import settle_audits
from giornata.control.attempts.ending.complete import complete
from giornata.control.attempts.ending.reported_ends import fail, release
from giornata.control.attempts.heartbeat import heartbeat
from giornata.control.jobs.stop_job import cancel, expire_deadlines
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.work import CompleteAttempt, FailAttempt, Heartbeat, ReleaseAttempt
from giornata.protocol.specs import AUDIT_KIND

NUMBERS_HALF = 32
TRAINING = 3  # as `submit` reads a number
TURNS = 6  # a machine is drawn, its result is read, the third one is drawn, and its result is read
ALWAYS = 2.0  # the share; also of a machine that is audited less often than others


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
        self.rig.ctx = replace(was, policy=replace(was.policy, audits=replace(was.policy.audits, share=ALWAYS)))
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

    def refute(self, a: int, b: int) -> None:
        """The machine that lies is found out while (`b` is odd) its job was tried again, or (`b` from 32 on) another
        audit of the job is open.
        """
        if not self.exact:
            return
        held = self._held_by_liar()
        if held is None:  # it is in quarantine, or has had its share of work
            self.very_long_wait(0, 0)
            self.reap(0, 0)
            return
        if b >= NUMBERS_HALF:
            self._commit_of_liar(held, lie=False)
        step = self._commit_of_liar(held, lie=True)
        if b % 2:
            self._do(lambda: cancel(self.ctx, owner(held.project), held.job_id))
            self.retry(self._place_among_jobs(held.job_id), 1)
            self.checker.look()
        self._judge(held.job_id, step)

    def _held_by_liar(self) -> TrackedLease | None:
        """A training job that the liar has, or asks for now."""
        place = next(place for place in PLACES if place.machine == LIAR)
        for _ in range(2):
            alive = [it for it in self._alive(self.actors.held) if it.place.machine == LIAR]
            training = [it for it in alive if self.checker.jobs[it.job_id].kind == "train"]
            if training:
                return training[-1]
            self.submit(0, TRAINING)
            self.checker.look()
            self._ask_anew(replace(place, kinds=("train",)))
        return None

    def _commit_of_liar(self, held: TrackedLease, *, lie: bool) -> int:
        step = self.checker.jobs[held.job_id].step + 1
        data = _result(held.job_id, step, lie=lie)
        upload_id = self._sent(held, data)
        if upload_id is not DIED:
            with self._audited_always():
                self._commit_step(held, step, data, upload_id, honest=True, again=False)
        self.checker.look()
        return step

    def _judge(self, job_id: str, step: int) -> None:
        """The sound machines of the operator ask for audits alone, and repeat those of this step."""
        sound = [replace(place, kinds=(AUDIT_KIND,)) for place in PLACES[:2]]
        for _ in range(TURNS):
            for place in sound:
                if not [it for it in self._alive(self.actors.audit_runs) if it.place.machine == place.machine]:
                    self._ask_anew(place)
            for held in self._alive(self.actors.audit_runs):
                spec = self._spec_of(held.job_id)
                if (spec["job"], spec["to_step"]) == (job_id, step) and held.place.machine != LIAR:
                    told = {"sha256": named(_result(job_id, step, lie=False))["sha256"], "files": {}}
                    report = CompleteAttempt(step=step, summary=told)
                    self.write(held, partial(complete, self.ctx, held.attempt_id, report), end=Reason.SUCCEEDED)
                    self.checker.look()
            self._do(lambda: settle_audits(self.ctx))

    def _ask_anew(self, place: NodePlace) -> None:
        """By a new process, which has nothing in hand."""
        self.replace_process(place.number, 0)
        incarnation, number = self.actors.incarnations[place.number], next(self.actors.numbers)
        self._ask(place, incarnation, f"request-{number:07d}", lost=False, again=False)
        self.checker.look()

    def _do(self, action: Callable[[], Any]) -> None:
        self.call(action)
        self.checker.look()

    def _place_among_jobs(self, job_id: str) -> int:
        """The number by which actions of users name this job."""
        known = [each for each, _ in self.actors.jobs]
        return known[::-1].index(job_id) if job_id in known else 0

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
