"""Validations: sample images of a training job after a step, drawn by any node from the checkpoint of that step.

A validation is a job of its own, made in the transaction that commits the checkpoint. The checkpoint is a file that
it reads, so that the bytes stay when the training job no longer keeps the checkpoint. So is the file of a registered
base, which the training job holds only until its own end.
"""

from dataclasses import replace

from giornata.control.context import Context
from giornata.control.pictures.order_files import BASE_SHA256
from giornata.control.ports.node_queries.work_rows import ArtifactRow, AttemptRow, JobRow
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.records import JobRecord
from giornata.domain.jobs.job import JobEvent, JobState
from giornata.domain.jobs.routing import next_turn
from giornata.protocol.events import EventType
from giornata.protocol.node.work import CommitCheckpoint
from giornata.protocol.specs import CHECKPOINT_ROLE, VALIDATE_KIND, model_key, step_of_sheet
from giornata.protocol.training.results import FLEET, is_drawn_by_fleet

PRIORITY = -101
"""Behind every job that a user can submit."""
WAITS_MS = 24 * 3_600_000
"""A validation that no node has drawn by then expires."""


def order_validation(
    tx: Transaction, ctx: Context, job: JobRow, commit: CommitCheckpoint, *, at_ms: int
) -> str | None:
    """Queue the validation of this checkpoint, if its step is one; return the validation's id.

    It replaces those of the same training job that no node has begun. The training job is held.
    """
    if job.kind != "train" or not is_drawn_by_fleet(job.spec, commit.step):
        return None
    new = _record(ctx, job, commit, at_ms=at_ms)
    _cancel_unbegun(tx, ctx, job, by=new.id, at_ms=at_ms)
    tx.submission.hold_project(job.project_id)
    turn = next_turn(tx.submission.turns(job.project_id, kind=VALIDATE_KIND, priority=PRIORITY))
    tx.submission.add_each([replace(new, turn=turn)])
    tx.submission.add_input(new, CHECKPOINT_ROLE, commit.sha256)
    if job.spec.get(BASE_SHA256) is not None:
        tx.submission.hold_models_of(new.id, [job.id])
    data = {"kind": VALIDATE_KIND, "retry_of": None}
    tx.events.add(new.id, new.project_id, EventType.JOB_SUBMITTED, None, data, at_ms)
    return new.id


def cancel_validations(tx: Transaction, ctx: Context, job: JobRow, *, at_ms: int) -> None:
    """Cancel the validations of a training job that is stopped, but for those that a node has begun."""
    if job.kind == "train" and job.spec.get("validation_by") == FLEET:
        _cancel_unbegun(tx, ctx, job, by=job.id, at_ms=at_ms)


def cancel_drawn(tx: Transaction, ctx: Context, job: JobRow, artifact: ArtifactRow, *, at_ms: int) -> None:
    """Cancel the validation whose sheet the training process has drawn itself, unless a node has begun it."""
    step = step_of_sheet(job.kind, job.spec, artifact.name)
    if job.kind == "train" and step is not None and is_drawn_by_fleet(job.spec, step):
        _cancel_unbegun(tx, ctx, job, step, by=job.id, at_ms=at_ms)


def join_to_training(tx: Transaction, job: JobRow, artifact: ArtifactRow, *, media_type: str, at_ms: int) -> None:
    """Make the sheet of a validation a result of its training job as well."""
    training = tx.jobs.get(job.spec["job"]) if job.kind == VALIDATE_KIND else None
    if training is None:
        return
    tx.artifacts.put(training, artifact, media_type=media_type, at_ms=at_ms)
    data = {
        "name": artifact.name,
        "size_bytes": artifact.size_bytes,
        "sha256": artifact.sha256,
        "validation": job.id,
    }
    tx.events.add(training.id, training.project_id, EventType.ARTIFACT_COMMITTED, None, data, at_ms)


def tell_of_samples(tx: Transaction, job: JobRow, attempt: AttemptRow, artifact: ArtifactRow, *, at_ms: int) -> None:
    """Write `validation.ready` to the training job if the artifact holds the sample images of a step, whoever drew
    them.
    """
    drawn_elsewhere = job.kind == VALIDATE_KIND
    training = tx.jobs.get(job.spec["job"]) if drawn_elsewhere else job
    step = None if training is None else step_of_sheet(training.kind, training.spec, artifact.name)
    if training is None or step is None:
        return
    data = {"step": step, "name": artifact.name, "sha256": artifact.sha256}
    number = None if drawn_elsewhere else attempt.number
    data |= {"validation": job.id} if drawn_elsewhere else {}
    tx.events.add(training.id, training.project_id, EventType.VALIDATION_READY, number, data, at_ms)


def _cancel_unbegun(
    tx: Transaction, ctx: Context, job: JobRow, step: int | None = None, *, by: str, at_ms: int
) -> None:
    """Cancel the validations that no node has begun: all of the training job, or that of one step."""
    for each in tx.jobs.lock_unbegun(VALIDATE_KIND, name_begins=_name(job, "")):
        if step is not None and each.name != _name(job, step):
            continue
        tx.jobs.change(each, JobEvent.CANCEL, ended_at_ms=at_ms)
        ctx.durations.ended(each, JobState.CANCELED, at_ms=at_ms)
        tx.events.add(each.id, each.project_id, EventType.JOB_CANCELED, None, {"by": by}, at_ms)


def _name(job: JobRow, step: int | str) -> str:
    """Return the name by which a checkpoint is named elsewhere too: `job_…@500`."""
    return f"{job.id}@{step}"


def _record(ctx: Context, job: JobRow, commit: CommitCheckpoint, *, at_ms: int) -> JobRecord:
    spec = {"job": job.id, "step": commit.step, "checkpoint": commit.sha256, "training": dict(job.spec)}
    return JobRecord(
        id=ctx.names.new("job"),
        project_id=job.project_id,
        kind=VALIDATE_KIND,
        name=_name(job, commit.step),
        state=JobState.QUEUED,
        spec=spec,
        model_key=model_key(VALIDATE_KIND, spec),
        priority=PRIORITY,
        created_at_ms=at_ms,
        deadline_at_ms=at_ms + WAITS_MS,
        min_vram_bytes=job.min_vram_bytes,
    )
