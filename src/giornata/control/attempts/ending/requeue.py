"""Requeue or fail a job whose attempt ended without an end of the job in sight."""

from collections.abc import Sequence
from typing import Any

from giornata.control.attempts.ending.judge_machines import everybodys
from giornata.control.budgets.budgets import pause_job, used_up
from giornata.control.context import Context
from giornata.control.ports.node_queries.work_rows import AttemptRow, JobRow
from giornata.control.ports.store import Transaction
from giornata.domain.jobs.job import JobEvent, JobState
from giornata.domain.jobs.reasons import Reason, job_fails
from giornata.protocol.events import EventType
from giornata.protocol.node.pipe import FaultLine
from giornata.protocol.specs import CANARY_KIND


def requeue(
    tx: Transaction,
    ctx: Context,
    job: JobRow,
    attempt: AttemptRow,
    *,
    at_ms: int,
    fruitless: int | None = None,
    alone_because: str | None = None,
) -> JobState:
    """Put the job back into the queue, ahead of those that never ran; another node goes on with it.

    With a reason to run alone the job never shares a batch again. A job without money waits outside the queue.
    """
    columns: dict[str, Any] = {} if fruitless is None else {"fruitless": fruitless}
    data: dict[str, Any] = {"resume_step": job.committed_step}
    if alone_because is not None:
        columns["joint_key"] = None
        data["alone_because"] = alone_because
    stop = used_up(tx, ctx, job, at_ms=at_ms)
    if stop is not None:
        return pause_job(tx, job, stop, at_ms=at_ms, attempt_number=attempt.number, data=data, **columns)
    state = tx.jobs.change(job, JobEvent.REQUEUE, interrupted=True, phase="", **columns)
    tx.events.add(job.id, job.project_id, EventType.JOB_REQUEUED, attempt.number, data, at_ms)
    return state


def fail_job(
    tx: Transaction,
    ctx: Context,
    job: JobRow,
    attempt: AttemptRow,
    *,
    error: str,
    faults: Sequence[FaultLine],
    at_ms: int,
) -> JobState:
    """End the job as failed: it will not be tried again."""
    told: list[dict[str, Any]] = [fault.model_dump() for fault in faults]
    state = tx.jobs.change(job, JobEvent.FAIL, ended_at_ms=at_ms, error=error, faults=told, phase="")
    ctx.durations.ended(job, state, at_ms=at_ms)
    data = {"error": error, "faults": told}
    tx.events.add(job.id, job.project_id, EventType.JOB_FAILED, attempt.number, data, at_ms)
    return state


def fruitless_after(job: JobRow, attempt: AttemptRow) -> int:
    """Return the number of ends in a row without a new committed step, this one included. A lapse has been counted
    already.
    """
    if attempt.committed_step > attempt.start_step:
        return 0
    return job.fruitless + int(not attempt.lapsed)


def verdict(
    tx: Transaction, ctx: Context, job: JobRow, attempt: AttemptRow, *, reason: Reason, fruitless: int
) -> str | None:
    """Return why the end of this attempt is the end of the job; None when it shall be tried again.

    For a reason that the node gave, the attempt must have been ended in this transaction.
    """
    policy = ctx.policy
    counted = reason in {Reason.CRASHED, Reason.NODE_TOO_SMALL}
    alike = [each for each in tx.attempts.failed_since_progress(job.id) if each.reason is reason] if counted else []
    too_small_again = reason is Reason.NODE_TOO_SMALL and _on_machine(alike, attempt) > 1
    crashes = alike if reason is Reason.CRASHED else []
    if not job_fails(
        reason,
        crashes=len(crashes),
        max_crashed_machines=policy.max_crashed_machines,
        fruitless=fruitless,
        max_fruitless=policy.max_fruitless,
        too_small_again=too_small_again,
    ):
        return None
    if len(crashes) >= policy.max_crashed_machines:
        return _crashed(crashes)
    if too_small_again:
        return "its machine is too small for it, and no larger one has come"
    if fruitless >= policy.max_fruitless:
        return f"{fruitless} attempts in a row ended without a single new checkpoint"
    return "no other machine can do it either"


def settle_failure(
    tx: Transaction,
    ctx: Context,
    job: JobRow,
    attempt: AttemptRow,
    reason: Reason,
    *,
    message: str,
    faults: Sequence[FaultLine] = (),
    at_ms: int,
) -> JobState:
    """Queue the job again, or fail it. The attempt must have been ended in this transaction."""
    # On a bad day of everybody's the job is not to blame that it comes to nothing. That is so once on each machine:
    # a cause that stays must not keep the job going round for ever.
    bad_day = everybodys(tx, ctx, job, attempt, reason, at_ms=at_ms)
    excused = bad_day and _on_machine(tx.attempts.failed_since_progress(job.id), attempt) <= 1
    fruitless = job.fruitless if excused else fruitless_after(job, attempt)
    why = verdict(tx, ctx, job, attempt, reason=reason, fruitless=fruitless)
    if why is None and job.kind == CANARY_KIND:
        why = "it was for this machine only"
    if why is None:
        return requeue(tx, ctx, job, attempt, at_ms=at_ms, fruitless=fruitless)
    return fail_job(tx, ctx, job, attempt, error=f"{message} ({reason}: {why})", faults=faults, at_ms=at_ms)


def _on_machine(attempts: Sequence[AttemptRow], attempt: AttemptRow) -> int:
    """Return how many of the attempts were on this attempt's machine."""
    return sum(each.machine_id == attempt.machine_id for each in attempts)


def _crashed(crashes: Sequence[AttemptRow]) -> str:
    machines = len({each.machine_id for each in crashes})
    if machines == len(crashes):
        return f"it crashed on {machines} different machines"
    where = "one machine" if machines == 1 else f"{machines} machines"
    return f"it crashed {len(crashes)} times on {where}, and committed no new checkpoint in between"
