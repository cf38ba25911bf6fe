"""What the end of an attempt says about machines. Done in the very transaction that ends the attempt.

Locks the rows of the machines concerned, all at once and in the order of their keys, after the job: a claim holds
its node and its machine and waits for no job, so nobody waits in a circle.
"""

from dataclasses import dataclass

from giornata.control.context import Context
from giornata.control.ports.machine_store import MachineKey
from giornata.control.ports.store import Transaction
from giornata.control.ports.work_rows import AttemptRow, JobRow
from giornata.domain.health import (
    Failure,
    common_cause,
    confirmed,
    failed,
    newcomer,
    succeeded,
    taken_back,
    void_failures,
    weight_of,
)
from giornata.domain.machine_ids import owner_of, proves_against
from giornata.domain.reasons import Reason
from giornata.protocol.specs import CANARY_KIND


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """An attempt that just ended badly."""

    failure: Failure
    keys: tuple[MachineKey, ...]  # whose failure it is; of a canary all rows that wait for it
    void: frozenset[str]  # attempts of the job that say nothing against anybody
    alike: frozenset[str]  # machines that fail for a cause that is none of theirs

    @property
    def counts(self) -> bool:
        return self.failure.weight > 0 and self.failure.attempt_id not in self.void


def everybodys(
    tx: Transaction, ctx: Context, job: JobRow, attempt: AttemptRow, reason: Reason, *, at_ms: int
) -> frozenset[str]:
    """The machines that failed alike lately, if they are so many that neither they nor the jobs can be the cause;
    else none. The attempt that is asked about must have been ended in this transaction.

    Machines of one owner say nothing about those of another.
    """
    policy = ctx.policy.health
    if job.kind != CANARY_KIND and not weight_of(reason, policy=policy):
        return frozenset()
    since_ms = at_ms - round(policy.burst_s * 1000)
    like = tx.machines.outcomes(job.kind, reason, owner=owner_of(attempt.machine_id), since_ms=since_ms)
    common = common_cause(failing=like.failing, fine=like.fine, jobs=like.jobs, policy=policy)
    return like.failing if common else frozenset()


def judge_failure(
    tx: Transaction, ctx: Context, job: JobRow, attempt: AttemptRow, reason: Reason, *, at_ms: int, job_failed: bool
) -> None:
    """Hold the end against the machine, unless it was the job's fault, or everybody's.

    `job_failed` says that this was the end of the job as well: then what its earlier attempts were thought to say
    about machines is taken back as far as it was the job's. When most machines fail alike, nothing of it counts,
    not what was counted already either. The attempt must have been ended in this transaction.
    """
    case = _case(tx, ctx, job, attempt, reason, at_ms=at_ms, job_failed=job_failed)
    policy, guilty = ctx.policy.health, case.counts and not case.alike
    if guilty:
        for machine_id, kind in sorted(case.keys):
            tx.machines.make_sure(newcomer(machine_id, kind, policy=policy, at_ms=at_ms))
    concerned = _keys_of(tx, job, case) | (set(case.keys) if guilty else set())
    since_ms = at_ms - round(policy.burst_s * 1000)

    def is_void(failure: Failure) -> bool:
        alike = bool(case.alike) and failure.reason is reason and failure.at_ms > since_ms
        return alike or failure.attempt_id in case.void

    for key, health in tx.machines.lock_each(sorted(concerned)).items():
        judged = taken_back(health, is_void, policy=policy, at_ms=at_ms)
        if guilty and key in case.keys:
            judged = failed(judged, case.failure, policy=policy)
        if judged != health:
            tx.machines.put(judged)


def judge_success(tx: Transaction, ctx: Context, job: JobRow, attempt: AttemptRow, *, at_ms: int) -> None:
    """Give the machine credit; and if the job crashed elsewhere before, that was the other machine's own fault."""
    policy = ctx.policy.health
    canary = job.kind == CANARY_KIND
    keys = tx.machines.of_canary(job.id) if canary else [(attempt.machine_id, job.kind)]
    if not canary and job.attempt_count == 1:
        known = tx.machines.get_each([attempt.machine_id], [job.kind]).get(keys[0])
        if known is not None and known.settled:
            return
    crashed = {
        each.id: each.machine_id
        for each in (tx.attempts.crashed(job.id) if job.attempt_count > 1 and not canary else ())
        if proves_against(attempt.machine_id, each.machine_id)
    }
    if not canary:
        tx.machines.make_sure(newcomer(attempt.machine_id, job.kind, policy=policy, at_ms=at_ms))
    concerned = {*keys, *((machine_id, job.kind) for machine_id in crashed.values())}
    for key, health in tx.machines.lock_each(sorted(concerned)).items():
        judged = confirmed(health, crashed, policy=policy, at_ms=at_ms)
        if key in keys:
            judged = succeeded(judged, policy=policy, at_ms=at_ms, canary=canary)
        if judged != health:
            tx.machines.put(judged)


def _case(
    tx: Transaction, ctx: Context, job: JobRow, attempt: AttemptRow, reason: Reason, *, at_ms: int, job_failed: bool
) -> _Case:
    policy = ctx.policy.health
    canary = job.kind == CANARY_KIND
    failure = Failure(
        attempt_id=attempt.id,
        job_id=job.id,
        reason=reason,
        began_at_ms=attempt.started_at_ms,
        at_ms=at_ms,
        # What a canary is to do was tried on every other machine: that it failed is never the canary's fault.
        weight=1.0 if canary else weight_of(reason, policy=policy),
        canary=canary,
    )
    void = frozenset[str]()
    if job_failed and not canary:
        void = void_failures(tx.machines.failures_of_job(job.id), alike_on=ctx.policy.max_crashed_machines)
    keys = tx.machines.of_canary(job.id) if canary else ((attempt.machine_id, job.kind),)
    counts = failure.weight > 0 and attempt.id not in void
    alike = everybodys(tx, ctx, job, attempt, reason, at_ms=at_ms) if counts else frozenset[str]()
    return _Case(failure=failure, keys=tuple(keys), void=void, alike=alike)


def _keys_of(tx: Transaction, job: JobRow, case: _Case) -> set[MachineKey]:
    """Rows from which something may have to be taken back."""
    keys = set[MachineKey]()
    if case.void:
        keys |= {
            (machine_id, job.kind)
            for attempt_id, machine_id, _ in tx.machines.failures_of_job(job.id)
            if attempt_id in case.void
        }
    if job.kind == CANARY_KIND:
        return keys | {(each.machine_id, each.kind) for name in case.alike for each in tx.machines.of_machine(name)}
    return keys | {(machine_id, job.kind) for machine_id in case.alike}
