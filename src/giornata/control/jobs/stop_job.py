"""Stop jobs before their work is done: their owner cancels them, or their deadline passes."""

from collections.abc import Mapping
from typing import Any

from giornata.control.access.permissions import require_any, require_write
from giornata.control.attempts.ending.end_attempt import end_attempt
from giornata.control.attempts.validations import cancel_validations
from giornata.control.audit_log.record import record_call
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.jobs.reading.read_jobs import own_job, read_job
from giornata.control.ports.node_queries.work_rows import JobRow
from giornata.control.ports.store import Transaction
from giornata.domain.accounts.audit_log import AuditVerb
from giornata.domain.errors import NotFound
from giornata.domain.generation.picture import ORDER_KINDS
from giornata.domain.jobs.job import TERMINAL, JobEvent, JobState
from giornata.domain.jobs.reasons import Reason
from giornata.domain.jobs.sweep import SWEEP_KIND
from giornata.protocol.events import EventType
from giornata.protocol.jobs import Job
from giornata.protocol.project.admin import Scope

_TYPES: Mapping[JobEvent, EventType] = {
    JobEvent.CANCEL: EventType.JOB_CANCELED,
    JobEvent.EXPIRE: EventType.JOB_EXPIRED,
}
AT_MOST = 200


def stop_job(
    tx: Transaction,
    ctx: Context,
    job: JobRow,
    event: JobEvent,
    *,
    at_ms: int,
    message: str,
    data: Mapping[str, Any],
) -> JobState:
    """Apply CANCEL or EXPIRE to a locked job (`tx.jobs.lock`) and end its attempt in the same transaction.

    The attempt is fenced and its bill closed now, not when its node hears of it: from here on whatever the node
    sends is refused with `lease-lost`, and the refusal names the job's state. Raises IllegalTransition.
    """
    state = tx.jobs.change(job, event, ended_at_ms=at_ms, paused_by=None)
    ctx.durations.ended(job, state, at_ms=at_ms)
    if job.kind in ORDER_KINDS:
        # Nodes that draw some of them are told when they ask or report.
        tx.picture_orders.close_order(job.id)
    cancel_validations(tx, ctx, job, at_ms=at_ms)
    if job.kind == SWEEP_KIND:
        _stop_swept(tx, ctx, job, event, at_ms=at_ms, message=message, data=data)
    attempt = tx.attempts.live_of_job(job.id)
    number = None
    if attempt is not None:
        number = attempt.number
        end_attempt(tx, job, attempt, reason=Reason.CANCELED, at_ms=at_ms, alive=False, message=message)
    tx.events.add(job.id, job.project_id, _TYPES[event], number, data, at_ms)
    return state


def _stop_swept(
    tx: Transaction,
    ctx: Context,
    sweep: JobRow,
    event: JobEvent,
    *,
    at_ms: int,
    message: str,
    data: Mapping[str, Any],
) -> None:
    """Stop the jobs of a sweep that have not ended, in the order of their ids, as every transaction locks jobs."""
    for each in sorted(tx.sweeps.jobs(sweep.id), key=lambda row: row.id):
        job = None if each.state in TERMINAL else tx.jobs.lock(each.id)
        if job is not None and job.state not in TERMINAL:
            stop_job(tx, ctx, job, event, at_ms=at_ms, message=message, data=data)


def cancel(ctx: Context, caller: Caller, job_id: str) -> Job:
    """Cancel a job that has not ended; its node is fenced at once. Repeating it changes nothing.

    Raises Forbidden, NotFound, and IllegalTransition for a job that succeeded, failed or expired.
    """
    require_any(caller, Scope.JOBS_WRITE, Scope.GENERATE)
    with ctx.store.begin() as tx:
        require_write(caller, own_job(tx, caller, job_id).kind)
        job = tx.jobs.lock(job_id)
        if job is None:
            raise NotFound(f"there is no job {job_id}")
        if job.state is not JobState.CANCELED:
            now_ms = ctx.clock.now_ms()
            stop_job(
                tx,
                ctx,
                job,
                JobEvent.CANCEL,
                at_ms=now_ms,
                message="canceled by its owner",
                data={"by": caller.maker},
            )
            record_call(tx, caller, AuditVerb.JOB_CANCEL, job_id, at_ms=now_ms)
        return read_job(ctx, tx, caller, job_id)


def expire_deadlines(ctx: Context) -> int:
    """Expire jobs whose deadline has passed, running or not; returns how many. A loop calls it again and again."""
    with ctx.store.only_here("expire") as ours:
        if not ours:
            return 0
        with ctx.store.read() as tx:
            late = tx.jobs.past_deadline(at_ms=ctx.clock.now_ms(), limit=AT_MOST)
        return sum(_expire(ctx, job_id) for job_id in late)


def _expire(ctx: Context, job_id: str) -> bool:
    now_ms = ctx.clock.now_ms()
    with ctx.store.begin() as tx:
        job = tx.jobs.lock(job_id)
        if job is None or job.state in TERMINAL or job.deadline_at_ms is None or job.deadline_at_ms > now_ms:
            return False
        stop_job(tx, ctx, job, JobEvent.EXPIRE, at_ms=now_ms, message="the job's deadline passed", data={})
        return True
