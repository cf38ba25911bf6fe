"""Judge machines by the end of an attempt, in the very transaction that ends the attempt.

Locks the rows of the machines concerned, all at once and in the order of their keys, after the job: a claim holds its
node and its machine and waits for no job, so no transactions deadlock.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from giornata.control.context import Context
from giornata.control.notifications.announce import announce
from giornata.control.ports.node_queries.machine_store import MachineKey
from giornata.control.ports.node_queries.work_rows import AttemptRow, JobRow
from giornata.control.ports.store import Transaction
from giornata.domain.generation.picture import LEASE_KIND
from giornata.domain.jobs.reasons import Reason
from giornata.domain.machines.health import (
    Failure,
    MachineHealth,
    MachineState,
    common_cause,
    confirmed,
    failed,
    newcomer,
    succeeded,
    taken_back,
    void_failures,
    weight_of,
)
from giornata.domain.machines.machine_ids import own_name, owner_of, proves_against
from giornata.protocol.events import OperatorEvent
from giornata.protocol.project.admin import ROOT_PROJECT
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Credit:
    """An attempt that succeeded, with the rows that get credit, the others that it says something of, and earlier
    crashes.
    """

    keys: frozenset[MachineKey]  # of a canary all rows that wait for it
    concerned: frozenset[MachineKey]
    crashed: Mapping[str, str]  # machines by attempt
    canary: bool


def everybodys(
    tx: Transaction, ctx: Context, job: JobRow, attempt: AttemptRow, reason: Reason, *, at_ms: int
) -> frozenset[str]:
    """Return the machines that failed alike lately, if they are so many that neither they nor the jobs can be the
    cause; else none.

    The attempt that is asked about must have been ended in this transaction. Machines of one owner say nothing about
    those of another.
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
    """Hold the end against the machine, unless the job caused it, or most machines fail alike.

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
        put_judged(tx, ctx, health, judged, at_ms=at_ms)


def put_judged(tx: Transaction, ctx: Context, before: MachineHealth, health: MachineHealth, *, at_ms: int) -> None:
    """Write the record if it is another one, and tell the webhooks of the machine's owner of a quarantine."""
    if health != before:
        tx.machines.put(health)
    if before.state is MachineState.QUARANTINED or health.state is not MachineState.QUARANTINED:
        return
    owner = owner_of(health.machine_id) or ROOT_PROJECT
    shown = own_name(health.machine_id, owner)
    data = {"machine_id": shown, "kind": health.kind, "reason": health.reason}
    announce(tx, ctx, owner, OperatorEvent.MACHINE_QUARANTINED, data, at_ms=at_ms)


def judge_successes(tx: Transaction, ctx: Context, ended: Sequence[tuple[JobRow, AttemptRow]], *, at_ms: int) -> None:
    """Give the machines credit; where a job crashed elsewhere before, that was the other machine's own fault."""
    keys = [(attempt.machine_id, job.kind) for job, attempt in ended if job.kind != CANARY_KIND]
    known = tx.machines.get_each([key[0] for key in keys], [key[1] for key in keys]) if keys else {}
    credits = [
        _credit(tx, job, attempt)
        for job, attempt in ended
        if not (job.attempt_count == 1 and _is_settled(known.get((attempt.machine_id, job.kind))))
    ]
    _give(tx, ctx, credits, known.keys(), at_ms=at_ms)


def judge_drawers(tx: Transaction, ctx: Context, machine_ids: Collection[str], *, at_ms: int) -> None:
    """Give credit to the machines of leases of pictures that succeeded, once for each time that one is named."""
    known = tx.machines.get_each(sorted(set(machine_ids)), [LEASE_KIND])
    keys = [(machine_id, LEASE_KIND) for machine_id in machine_ids]
    credits = [
        _Credit(keys=frozenset({key}), concerned=frozenset({key}), crashed={}, canary=False)
        for key in keys
        if not _is_settled(known.get(key))
    ]
    _give(tx, ctx, credits, known.keys(), at_ms=at_ms)


def _give(
    tx: Transaction, ctx: Context, credits: Sequence[_Credit], known: Collection[MachineKey], *, at_ms: int
) -> None:
    """Give the credit. Rows of machines that are not `known` are made first."""
    policy = ctx.policy.health
    for machine_id, kind in sorted(
        {key for each in credits if not each.canary for key in each.keys}.difference(known)
    ):
        tx.machines.make_sure(newcomer(machine_id, kind, policy=policy, at_ms=at_ms))
    concerned = sorted({key for each in credits for key in each.concerned})
    for key, health in tx.machines.lock_each(concerned).items():
        judged = health
        for each in credits:
            if key in each.concerned:
                judged = confirmed(judged, each.crashed, policy=policy, at_ms=at_ms)
            if key in each.keys:
                judged = succeeded(judged, policy=policy, at_ms=at_ms, canary=each.canary)
        if judged != health:
            tx.machines.put(judged)


def _is_settled(health: MachineHealth | None) -> bool:
    return health is not None and health.settled


def _credit(tx: Transaction, job: JobRow, attempt: AttemptRow) -> _Credit:
    canary = job.kind == CANARY_KIND
    crashed = tx.attempts.crashed(job.id) if job.attempt_count > 1 and not canary else ()
    others = {each.id: each.machine_id for each in crashed if proves_against(attempt.machine_id, each.machine_id)}
    keys = tx.machines.of_canary(job.id) if canary else ((attempt.machine_id, job.kind),)
    concerned = {*keys, *((machine_id, job.kind) for machine_id in others.values())}
    return _Credit(keys=frozenset(keys), concerned=frozenset(concerned), crashed=others, canary=canary)


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
    """Return the keys of rows from which something may have to be taken back."""
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
