"""Read a sweep: a row for each of its jobs, with what differs and what came of it."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from giornata.control.access.permissions import require_scope
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.jobs.job_reply import job_reply
from giornata.control.jobs.read_jobs import own_job, read_job
from giornata.control.ports.records import ArtifactRecord, AttemptRecord
from giornata.control.storage.signed_urls import signed_get
from giornata.control.timestamps import instant
from giornata.domain.errors import NotFound
from giornata.domain.sweep import SWEEP_KIND
from giornata.protocol.admin import Scope
from giornata.protocol.jobs import Artifact, Job
from giornata.protocol.model import sendable_media_type
from giornata.protocol.sweeps import Sweep, SweptJobReply

VALIDATION_LOSS = "validation_loss"
"""A training job's result has its held-out losses under this name, as (step, loss)."""


def get_sweep(ctx: Context, caller: Caller, job_id: str) -> Sweep:
    """Return the sweep with its jobs in their order. Raises Forbidden, NotFound, also for a job of another kind."""
    require_scope(caller, Scope.JOBS_READ)
    return read_sweep(ctx, caller, job_id)


def read_sweep(ctx: Context, caller: Caller, job_id: str) -> Sweep:
    """Return the sweep to a caller who may see it, or has just made it. Raises NotFound."""
    with ctx.store.read() as tx:
        parent = own_job(tx, caller, job_id)
        if parent.kind != SWEEP_KIND:
            raise NotFound(f"there is no sweep {job_id}; it is a job of kind {parent.kind}")
        reply = read_job(ctx, tx, caller, job_id)
        jobs = {job.id: job for job in tx.sweeps.records(job_id, project_id=caller.project_id)}
        attempts: dict[str, list[AttemptRecord]] = defaultdict(list)
        for attempt in tx.job_reads.attempts(list(jobs), project_id=caller.project_id, messages=False):
            attempts[attempt.job_id].append(attempt)
        losses = tx.sweeps.losses(job_id, project_id=caller.project_id)
        sheets = dict(tx.sweeps.sheets(job_id, project_id=caller.project_id))  # of each job the last one stays
    swept = [
        _swept(
            job_reply(jobs[each["job"]], attempts[each["job"]], names=None),
            swept=each,
            number=number,
            loss=losses.get(each["job"]),
            sheet=_sheet(ctx, sheets.get(each["job"])),
        )
        for number, each in enumerate(parent.spec["jobs"], 1)
        if each["job"] in jobs
    ]
    return Sweep(job=reply, differs=_differing(parent.spec["jobs"]), jobs=tuple(swept))


def _swept(
    job: Job, *, swept: Mapping[str, Any], number: int, loss: float | None, sheet: Artifact | None
) -> SweptJobReply:
    curve = job.result.get(VALIDATION_LOSS) or ()
    return SweptJobReply(
        number=number,
        job_id=job.id,
        name=job.name,
        state=job.state,
        changes=swept["changes"],
        waiting_because=job.waiting_because,
        step=job.step,
        total_steps=job.total_steps,
        loss=loss,
        validation_loss=curve[-1][1] if curve else None,
        cost_micro_usd=job.cost_micro_usd,
        likely_cost_micro_usd=swept["likely_cost_micro_usd"],
        error=job.error,
        sheet=sheet,
    )


def _sheet(ctx: Context, row: ArtifactRecord | None) -> Artifact | None:
    if row is None:
        return None
    media_type = sendable_media_type(row.media_type)
    return Artifact(
        name=row.name,
        sha256=row.sha256,
        size_bytes=row.size_bytes,
        media_type=media_type,
        created_at=instant(row.created_at_ms),
        request=signed_get(ctx, row.key, filename=row.name, media_type=media_type),
    )


def _differing(swept: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the fields of which the changes have more than one value, in the order of their first mention."""
    fields = dict.fromkeys(field for each in swept for field in each["changes"])
    missing = object()
    return tuple(
        field
        for field in fields
        if any(each["changes"].get(field, missing) != swept[0]["changes"].get(field, missing) for each in swept)
    )
