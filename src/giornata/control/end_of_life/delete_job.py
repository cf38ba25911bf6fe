"""Delete a job with all that hangs on it. What stays is what it cost, and that it was deleted."""

from collections.abc import Sequence
from dataclasses import replace

from giornata.control.access.permissions import require_any, require_write
from giornata.control.audit_log.record import record_call
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.end_of_life.record_deletion import JOB, record_deletion
from giornata.control.end_of_life.remove_bytes import Freed, remove_below, remove_bytes
from giornata.control.jobs.reading.read_jobs import own_job
from giornata.control.jobs.stop_job import stop_job
from giornata.control.ports.node_queries.work_rows import JobRow
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.end_of_life_store import DeletionRecord, TakenRows
from giornata.domain.accounts.audit_log import AuditVerb
from giornata.domain.errors import Conflict, IllegalTransition, NotFound
from giornata.domain.jobs.job import TERMINAL, JobEvent
from giornata.protocol.project.admin import Scope
from giornata.protocol.project.end_of_life import Deletion

ROWS_AT_ONCE = 2_000
NO_VERDICT = "its job was deleted"
MOST_STEPS = 50
"""Steps of one call: a request must not last for minutes. A loop does the rest."""


def delete_job(ctx: Context, caller: Caller, job_id: str, *, cancel: bool = False) -> Deletion:
    """Delete a job of the caller's project, its validations and audits, and all bytes that nothing else refers to.
    With a sweep its jobs are deleted.

    What other jobs start from stays: each of them has rows of its own for these bytes. Raises Forbidden, NotFound,
    IllegalTransition for a job that has not ended unless `cancel`, and Conflict for one that is pinned, or a sweep
    with a job that is.
    """
    require_any(caller, Scope.JOBS_WRITE, Scope.GENERATE)
    with ctx.store.begin() as tx:
        require_write(caller, own_job(tx, caller, job_id).kind)
        # The job is locked before what hangs on it, as everybody does.
        job = _locked(tx, job_id)
        swept = [_locked(tx, each) for each in tx.deletions.swept_by(job_id)]
        _refuse_pinned(tx, [job_id, *(each.id for each in swept)])
        canceled = job.state not in TERMINAL
        _stop(tx, ctx, caller, job, cancel=cancel)
        # The end of a sweep has ended its jobs.
        deletions = [hide_job(tx, ctx, caller, each) for each in (job, *swept)]
        for each in (job, *swept):
            deletions += _hide_made_for(tx, ctx, caller, each)
        changes = {"kind": job.kind, "canceled": canceled, "jobs": len(deletions)}
        record_call(tx, caller, AuditVerb.JOB_DELETE, job_id, at_ms=ctx.clock.now_ms(), changes=changes)
    purged = [finish_job(ctx, each) for each in deletions]
    freed = sum((freed for freed, _ in purged), Freed())
    return Deletion(
        id=job_id,
        what=JOB,
        objects=freed.objects,
        size_bytes=freed.size_bytes,
        finished=all(finished for _, finished in purged),
    )


def hide_job(tx: Transaction, ctx: Context, caller: Caller, job: JobRow) -> DeletionRecord:
    """Hide a locked job that has ended, and write the line of its deletion. Its rows and bytes are still there."""
    tx.deletions.empty_job(job.id, at_ms=ctx.clock.now_ms())
    return record_deletion(tx, ctx, caller, what=JOB, target_id=job.id, project_id=job.project_id)


def finish_job(ctx: Context, deletion: DeletionRecord) -> tuple[Freed, bool]:
    """Delete what is left of a deleted job; return what was freed, and whether nothing is left. May be repeated."""
    freed, finished = purge_job(ctx, deletion)
    with ctx.store.begin() as tx:
        tx.deletions.note(deletion.id, objects=freed.objects, size_bytes=freed.size_bytes)
        if finished:
            tx.deletions.finish(deletion.id, at_ms=ctx.clock.now_ms())
    return freed, finished


def _hide_made_for(tx: Transaction, ctx: Context, caller: Caller, job: JobRow) -> list[DeletionRecord]:
    """Stop and hide the validations and audits of a job."""
    hidden = []
    for each in tx.deletions.made_for(job.id, project_id=job.project_id):
        made = _locked(tx, each)
        _stop(tx, ctx, caller, made, cancel=True)
        hidden.append(hide_job(tx, ctx, caller, made))
    return hidden


def _locked(tx: Transaction, job_id: str) -> JobRow:
    job = tx.jobs.lock(job_id)
    if job is None:
        raise NotFound(f"there is no job {job_id}")
    return job


def _refuse_pinned(tx: Transaction, job_ids: Sequence[str]) -> None:
    if pinned := [target for job_id in job_ids for target in tx.deletions.pinned_of_job(job_id)]:
        raise Conflict(f"{', '.join(pinned)} is pinned; unpin it first: giornata unpin {pinned[0]}")


def _stop(tx: Transaction, ctx: Context, caller: Caller, job: JobRow, *, cancel: bool) -> None:
    if job.state in TERMINAL:
        return
    if not cancel:
        what = "cancel it first, or delete it with cancel: giornata delete --cancel"
        raise IllegalTransition(f"a job that is {job.state} cannot be deleted; {what}")
    now_ms, data = ctx.clock.now_ms(), {"by": caller.maker}
    stop_job(tx, ctx, job, JobEvent.CANCEL, at_ms=now_ms, message="deleted by its owner", data=data)


def purge_job(ctx: Context, deletion: DeletionRecord) -> tuple[Freed, bool]:
    """Delete the rows and the bytes of a deleted job; return what was freed, and whether nothing is left.

    Any number of servers may do it at once, and may die at any time. Raises Unavailable.
    """
    freed, job_id, project_id = Freed(), deletion.target_id, deletion.project_id
    for _ in range(MOST_STEPS):
        with ctx.store.begin() as tx:
            # Audits first, as the loop that settles them locks them first.
            audited = tx.audits.give_up(job_id, message=NO_VERDICT, at_ms=ctx.clock.now_ms())
            taken = tx.deletions.take_job_rows(job_id, limit=ROWS_AT_ONCE)
            taken = replace(taken, rows=taken.rows + len(audited), sha256s=taken.sha256s | audited)
            waits = not taken.rows and tx.deletions.has_events(job_id)
        freed += remove_bytes(ctx, project_id, taken, asked_before_ms=deletion.asked_at_ms)
        if not taken.rows:
            return freed + _purge_attempts(ctx, deletion), not waits
    return freed, False


def _purge_attempts(ctx: Context, deletion: DeletionRecord) -> Freed:
    """Delete what the attempts left besides: checkpoints that later ones replaced, and what they made for others."""
    with ctx.store.begin() as tx:
        attempt_ids = tx.deletions.attempt_ids(deletion.target_id)
        caches = tx.deletions.take_caches(deletion.project_id, attempt_ids)
    project_id, before_ms = deletion.project_id, deletion.asked_at_ms
    freed = remove_bytes(ctx, project_id, TakenRows(sha256s=caches), asked_before_ms=before_ms)
    for attempt_id in attempt_ids:
        freed += remove_below(ctx, project_id, f"{project_id}/{attempt_id}/", asked_before_ms=before_ms)
    return freed
