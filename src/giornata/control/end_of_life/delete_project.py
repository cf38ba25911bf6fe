"""Delete a whole project: its people and keys at once, then its jobs, its datasets and its bytes.

Its row stays, hidden, because its bill names it. Requests that were under way while it was closed may still write;
so a loop comes back until nothing was found for a while.
"""

from datetime import UTC, datetime

from giornata.control.access.members import require_project
from giornata.control.access.permissions import require_admin
from giornata.control.audit_log.record import record_call
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.end_of_life.delete_job import finish_job, hide_job
from giornata.control.end_of_life.record_deletion import PROJECT, record_deletion
from giornata.control.end_of_life.remove_bytes import Freed, remove_below, remove_bytes
from giornata.control.jobs.stop_job import stop_job
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.end_of_life_store import DeletionRecord, TakenRows
from giornata.domain.accounts.audit_log import AuditVerb
from giornata.domain.errors import Conflict, Fault, InvalidInput
from giornata.domain.generation.picture import KEYS_BEGIN_WITH
from giornata.domain.jobs.job import TERMINAL, JobEvent
from giornata.protocol.project.admin import ROOT_PROJECT
from giornata.protocol.project.end_of_life import Deletion

AT_ONCE = 100
SHOWN = 3
END_OF_TIME = datetime(9999, 1, 1, tzinfo=UTC)
SETTLED_AFTER_MS = 60_000
"""A request that began before the project was closed has ended by then."""


def delete_project(ctx: Context, caller: Caller, project_id: str, *, confirm: str, cancel: bool = False) -> Deletion:
    """Delete a project. The keys and sessions of its members end there with this request.

    Raises Forbidden unless the caller owns the project or governs the installation, NotFound, InvalidInput unless
    `confirm` is the id, and Conflict for the operator's own project, and while jobs have not ended unless `cancel`.
    """
    require_admin(caller)
    with ctx.store.begin() as tx:
        require_project(tx, caller, project_id)
        if confirm != project_id:
            hint = f"write the id once more: {project_id}"
            raise InvalidInput([Fault(where="confirm", message="is not the id of the project", hint=hint)])
        if project_id == ROOT_PROJECT:
            raise Conflict("the operator's own project cannot be deleted")
        tx.submission.hold_project(project_id)
        if not cancel:
            _refuse_busy(tx, project_id)
        tx.deletions.close_project(project_id, at_ms=ctx.clock.now_ms())
        line = record_deletion(tx, ctx, caller, what=PROJECT, target_id=project_id, project_id=project_id)
        verb, now_ms = AuditVerb.PROJECT_DELETE, line.asked_at_ms
        record_call(tx, caller, verb, project_id, at_ms=now_ms, project_id=project_id, changes={"cancel": cancel})
    ctx.memory.forget_callers()
    freed, _ = empty_project(ctx, caller, line)
    with ctx.store.begin() as tx:
        tx.deletions.note(line.id, objects=freed.objects, size_bytes=freed.size_bytes)
    return Deletion(id=project_id, what=PROJECT, objects=freed.objects, size_bytes=freed.size_bytes, finished=False)


def finish_project(ctx: Context, caller: Caller, deletion: DeletionRecord) -> tuple[Freed, bool]:
    """Delete what is left of a deleted project; return what was freed, and whether nothing comes any more."""
    freed, found = empty_project(ctx, caller, deletion)
    late = ctx.clock.now_ms() - deletion.asked_at_ms >= SETTLED_AFTER_MS
    with ctx.store.begin() as tx:
        tx.deletions.note(deletion.id, objects=freed.objects, size_bytes=freed.size_bytes)
        if late and not found:
            tx.deletions.finish(deletion.id, at_ms=ctx.clock.now_ms())
    return freed, late and not found


def empty_project(ctx: Context, caller: Caller, deletion: DeletionRecord) -> tuple[Freed, bool]:
    """Delete all jobs, datasets, other rows and bytes of a closed project; return what was freed, and whether there
    was anything. May be repeated, and may die at any time. Raises Unavailable.
    """
    project_id, before_ms, freed, found = deletion.target_id, ctx.clock.now_ms(), Freed(), False
    for job_id in _some_jobs(ctx, project_id):
        found = True
        freed += _delete_job(ctx, caller, job_id)
    if _some_jobs(ctx, project_id):
        return freed, True  # what they read stays until they have ended
    while dataset_ids := _datasets(ctx, project_id):
        found = True
        for dataset_id in dataset_ids:
            with ctx.store.begin() as tx:
                tx.datasets.lock(dataset_id, project_id=project_id)
                sha256s = tx.deletions.drop_dataset(dataset_id, project_id=project_id)
            freed += remove_bytes(ctx, project_id, TakenRows(sha256s=sha256s), asked_before_ms=before_ms)
    while (taken := _take(ctx, project_id)).rows:
        found = True
        freed += remove_bytes(ctx, project_id, taken, asked_before_ms=before_ms)
    swept = _sweep(ctx, project_id, before_ms=before_ms)
    return freed + swept, found or swept.objects > 0


def _refuse_busy(tx: Transaction, project_id: str) -> None:
    live = tx.deletions.live_jobs(project_id, limit=SHOWN + 1, audits=False)
    if live:
        named = ", ".join(live[:SHOWN]) + (" and others" if len(live) > SHOWN else "")
        raise Conflict(f"jobs of {project_id} have not ended: {named}; cancel them, or delete with cancel")


def _some_jobs(ctx: Context, project_id: str) -> list[str]:
    """Return some of the jobs that are to go, those first that have not ended."""
    with ctx.store.read() as tx:
        return [
            *tx.deletions.live_jobs(project_id, limit=AT_ONCE),
            *tx.deletions.jobs_left(project_id, limit=AT_ONCE),
        ]


def _delete_job(ctx: Context, caller: Caller, job_id: str) -> Freed:
    with ctx.store.begin() as tx:
        job = tx.jobs.lock(job_id)
        if job is None:
            return Freed()
        if job.state not in TERMINAL:
            now_ms, data = ctx.clock.now_ms(), {"by": caller.maker}
            stop_job(tx, ctx, job, JobEvent.CANCEL, at_ms=now_ms, message="its project was deleted", data=data)
        line = hide_job(tx, ctx, caller, job)
    freed, _ = finish_job(ctx, line)
    return freed


def _datasets(ctx: Context, project_id: str) -> list[str]:
    with ctx.store.read() as tx:
        return tx.deletions.datasets_left(project_id, limit=AT_ONCE)


def _take(ctx: Context, project_id: str) -> TakenRows:
    with ctx.store.begin() as tx:
        return tx.deletions.take_project_rows(project_id, limit=AT_ONCE)


def _sweep(ctx: Context, project_id: str, *, before_ms: int) -> Freed:
    """Delete every object of the project that is left, and every upload in parts."""
    freed = Freed()
    for prefix in (f"{project_id}/", f"{KEYS_BEGIN_WITH}{project_id}/"):
        freed += remove_below(ctx, project_id, prefix, asked_before_ms=before_ms)
    for stale in ctx.blobs.stale_multiparts(END_OF_TIME):
        if stale.key.startswith(f"{project_id}/"):
            ctx.blobs.abort_multipart(stale.key, stale.upload)
    return freed
