"""Read a sweep, or any training jobs, side by side: what differs and what came of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from giornata.control.access.permissions import require_scope
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.jobs.reading.imported_past import with_imported
from giornata.control.jobs.reading.job_reply import job_reply
from giornata.control.jobs.reading.read_jobs import own_job
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.records import ArtifactRecord, AttemptRecord, JobRecord
from giornata.control.storage.signed_urls import signed_get
from giornata.control.text_limits import is_id
from giornata.control.timestamps import instant
from giornata.domain.errors import Fault, InvalidInput, NotFound
from giornata.domain.jobs.sweep import MOST_SWEPT, SWEEP_KIND
from giornata.protocol.jobs import Artifact, Job
from giornata.protocol.model import sendable_media_type
from giornata.protocol.project.admin import Scope
from giornata.protocol.sweeps import Comparison, Sweep, SweptJobReply

VALIDATION_LOSS = "validation_loss"
"""A training job's result has its held-out losses under this name, as (step, loss)."""
OWN_OF_EACH = frozenset({"output_name"})
"""Fields that differ between any two jobs, and say nothing of what was trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSideBySide:
    """A job that is compared: its number, the fields in which it differs, and its likely cost, where known."""

    number: int
    job_id: str
    changes: Mapping[str, Any]
    likely_cost_micro_usd: int | None = None


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
        asked = [
            JobSideBySide(
                number=number,
                job_id=each["job"],
                changes=each["changes"],
                likely_cost_micro_usd=each["likely_cost_micro_usd"],
            )
            for number, each in enumerate(parent.spec["jobs"], 1)
        ]
        ids = [each.job_id for each in asked]
        attempts = tx.job_reads.attempts(ids, project_id=caller.project_id, messages=False)
        rows = _rows(ctx, tx, caller, asked, _records(tx, caller, ids), attempts)
        spent = sum(each.amount_micro_usd for each in attempts)  # also of jobs that were deleted
        _, elsewhere = with_imported(tx, [parent], ())
    cost = elsewhere.get(parent.id)
    job = job_reply(parent, (), names=None, spent_beside_micro_usd=spent, imported_cost_micro_usd=cost)
    return Sweep(job=job, differs=_differing([each.changes for each in asked]), jobs=rows)


def compare_jobs(ctx: Context, caller: Caller, job_ids: Sequence[str]) -> Comparison:
    """Return training jobs of the project side by side, in this order. Raises Forbidden, NotFound, InvalidInput."""
    require_scope(caller, Scope.JOBS_READ)
    wanted = list(dict.fromkeys(job_ids))
    if not 1 <= len(wanted) <= MOST_SWEPT:
        raise InvalidInput([Fault(where="job", message=f"name 1 to {MOST_SWEPT} jobs; there are {len(wanted)}")])
    with ctx.store.read() as tx:
        records = _records(tx, caller, [each for each in wanted if is_id(each)])
        for job_id in wanted:
            if job_id not in records or records[job_id].kind != "train":
                raise NotFound(f"there is no training job {job_id[:64]}")
        specs = [records[job_id].spec for job_id in wanted]
        differs = tuple(field for field in _differing(specs) if field not in OWN_OF_EACH)
        asked = [
            JobSideBySide(number=number, job_id=job_id, changes={field: spec.get(field) for field in differs})
            for number, (job_id, spec) in enumerate(zip(wanted, specs, strict=True), 1)
        ]
        attempts = tx.job_reads.attempts(list(records), project_id=caller.project_id, messages=False)
        return Comparison(differs=differs, jobs=_rows(ctx, tx, caller, asked, records, attempts))


def _records(tx: Transaction, caller: Caller, job_ids: Sequence[str]) -> Mapping[str, JobRecord]:
    return {job.id: job for job in tx.sweeps.records(job_ids, project_id=caller.project_id)}


def _rows(  # noqa: PLR0917 - jobs, with what was read of them
    ctx: Context,
    tx: Transaction,
    caller: Caller,
    asked: Sequence[JobSideBySide],
    records: Mapping[str, JobRecord],
    found: Sequence[AttemptRecord],
) -> tuple[SweptJobReply, ...]:
    ids, project_id = list(records), caller.project_id
    attempts, elsewhere = with_imported(tx, records.values(), found)
    losses = tx.sweeps.losses(ids, project_id=project_id)
    sheets = tx.sweeps.last_sheets(ids, project_id=project_id)
    return tuple(
        _row(
            job_reply(
                records[each.job_id],
                attempts.get(each.job_id, ()),
                names=None,
                imported_cost_micro_usd=elsewhere.get(each.job_id),
            ),
            each,
            loss=losses.get(each.job_id),
            sheet=_sheet(ctx, sheets.get(each.job_id)),
        )
        for each in asked
        if each.job_id in records
    )


def _row(job: Job, asked: JobSideBySide, *, loss: float | None, sheet: Artifact | None) -> SweptJobReply:
    curve = job.result.get(VALIDATION_LOSS) or ()
    return SweptJobReply(
        number=asked.number,
        job_id=job.id,
        name=job.name,
        state=job.state,
        changes=dict(asked.changes),
        waiting_because=job.waiting_because,
        step=job.step,
        total_steps=job.total_steps,
        loss=loss,
        validation_loss=curve[-1][1] if curve else None,
        cost_micro_usd=job.cost_micro_usd,
        imported_cost_micro_usd=job.imported_cost_micro_usd,
        likely_cost_micro_usd=asked.likely_cost_micro_usd,
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


def _differing(given: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the fields that have more than one value, in the order of their first mention."""
    fields, missing = dict.fromkeys(field for each in given for field in each), object()
    return tuple(
        field for field in fields if any(each.get(field, missing) != given[0].get(field, missing) for each in given)
    )
