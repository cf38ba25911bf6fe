"""What becomes of a job whose attempt ended without an end of the job in sight: the queue again, or failure."""

from collections.abc import Sequence
from typing import Any

from giornata.control.budgets import used_up
from giornata.control.context import Context
from giornata.control.pause import pause_job
from giornata.control.ports.store import Transaction
from giornata.control.ports.work_rows import AttemptRow, JobRow
from giornata.domain.job import JobEvent, JobState
from giornata.domain.reasons import Reason, job_fails
from giornata.protocol.events import EventType
from giornata.protocol.pipe import FaultLine


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

    With a reason to run alone it never shares a batch again. A job whose money is used up waits outside the queue.
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
    """The end of the job: it will not be tried again."""
    told: list[dict[str, Any]] = [fault.model_dump() for fault in faults]
    state = tx.jobs.change(job, JobEvent.FAIL, ended_at_ms=at_ms, error=error, faults=told, phase="")
    ctx.durations.ended(job, state, at_ms=at_ms)
    data = {"error": error, "faults": told}
    tx.events.add(job.id, job.project_id, EventType.JOB_FAILED, attempt.number, data, at_ms)
    return state


def fruitless_after(job: JobRow, attempt: AttemptRow) -> int:
    """Ends in a row that brought no new committed step, this one included. A lapse has been counted already."""
    if attempt.committed_step > attempt.start_step:
        return 0
    return job.fruitless + int(not attempt.lapsed)


def verdict(
    tx: Transaction, ctx: Context, job: JobRow, attempt: AttemptRow, *, reason: Reason, fruitless: int
) -> str | None:
    """Why the end of this attempt is the end of the job; None when another node shall try."""
    policy = ctx.policy
    crashed = set(tx.attempts.crashed_machines(job.id))
    crashed |= {attempt.machine_id} if reason is Reason.CRASHED else set()
    if not job_fails(
        reason,
        crashed_machines=len(crashed),
        max_crashed_machines=policy.max_crashed_machines,
        fruitless=fruitless,
        max_fruitless=policy.max_fruitless,
    ):
        return None
    if reason is Reason.CRASHED and len(crashed) >= policy.max_crashed_machines:
        return f"it crashed on {len(crashed)} different machines"
    if fruitless >= policy.max_fruitless:
        return f"{fruitless} attempts in a row ended without a single new checkpoint"
    return "no other machine can do it either"
