"""Read a job's checkpoints, artifacts, events, log lines and metrics for a user."""

from collections.abc import Collection
from dataclasses import dataclass

from giornata.control.access.machine_names import machine_names
from giornata.control.access.permissions import require_scope
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.jobs.reading.read_jobs import require_job
from giornata.control.pages import check_after, check_limit
from giornata.control.ports.user_queries.records import ArtifactRecord, CheckpointRecord, MetricRecord
from giornata.control.storage.signed_urls import signed_get
from giornata.control.timestamps import instant
from giornata.domain.errors import NotFound, TooLarge
from giornata.protocol.jobs import (
    Artifact,
    ArtifactPage,
    Checkpoint,
    CheckpointPage,
    Event,
    EventPage,
    LogLine,
    LogPage,
    MetricPage,
    MetricPoint,
)
from giornata.protocol.model import sendable_media_type
from giornata.protocol.project.admin import Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactBytes:
    """A result with its bytes, for a page that shows it."""

    media_type: str
    content: bytes


def read_checkpoints(
    ctx: Context, caller: Caller, job_id: str, *, below_step: int | None = None, limit: int | None = None
) -> CheckpointPage:
    """Return committed checkpoints with their URLs, highest step first; attempt 0 made those that a retry inherited.

    `below_step` begins below this step. `limit` None returns all of them. Raises Forbidden, NotFound, InvalidInput.
    """
    require_scope(caller, Scope.JOBS_READ)
    if below_step is not None:
        check_after(below_step, where="below_step")
    with ctx.store.read() as tx:
        require_job(tx, caller, job_id)
        rows = tx.job_reads.checkpoints(
            job_id, project_id=caller.project_id, below=below_step, limit=_one_more(limit)
        )
    items = tuple(_checkpoint(ctx, job_id, row) for row in rows[:limit])
    return CheckpointPage(items=items, next=str(items[-1].step) if len(rows) > len(items) else None)


def read_checkpoints_at(ctx: Context, caller: Caller, job_id: str, steps: Collection[int]) -> CheckpointPage:
    """Return those committed checkpoints that are of these steps. Raises Forbidden, NotFound."""
    require_scope(caller, Scope.JOBS_READ)
    with ctx.store.read() as tx:
        require_job(tx, caller, job_id)
        rows = tx.job_reads.checkpoints(job_id, project_id=caller.project_id, steps=steps)
    return CheckpointPage(items=tuple(_checkpoint(ctx, job_id, row) for row in rows))


def read_artifacts(
    ctx: Context, caller: Caller, job_id: str, *, after: str = "", limit: int | None = None
) -> ArtifactPage:
    """Return committed results with their URLs, by name; `after` begins behind a name. `limit` None returns all.

    Raises Forbidden, NotFound, InvalidInput.
    """
    require_scope(caller, Scope.JOBS_READ)
    with ctx.store.read() as tx:
        require_job(tx, caller, job_id)
        rows = tx.job_reads.artifacts(job_id, project_id=caller.project_id, after=after, limit=_one_more(limit))
    items = tuple(_artifact(ctx, row) for row in rows[:limit])
    return ArtifactPage(items=items, next=items[-1].name if len(rows) > len(items) else None)


def read_sheets(ctx: Context, caller: Caller, job_id: str, *, limit: int) -> ArtifactPage:
    """Return the latest sheets of samples by ascending step, the sheet of the finished job last. `next` is the first
    of them when there are earlier ones. Raises Forbidden, NotFound.
    """
    require_scope(caller, Scope.JOBS_READ)
    with ctx.store.read() as tx:
        require_job(tx, caller, job_id)
        rows = tx.job_reads.sheets(job_id, project_id=caller.project_id, limit=limit + 1)
    items = tuple(_artifact(ctx, row) for row in rows[:limit][::-1])
    return ArtifactPage(items=items, next=items[0].name if len(rows) > limit else None)


def _one_more(limit: int | None) -> int | None:
    """Return how many rows tell whether there are more than `limit`. Raises InvalidInput for a limit that is none."""
    if limit is None:
        return None
    check_limit(limit)
    return limit + 1


def _checkpoint(ctx: Context, job_id: str, row: CheckpointRecord) -> Checkpoint:
    return Checkpoint(
        step=row.step,
        attempt=row.attempt_number,
        sha256=row.sha256,
        size_bytes=row.size_bytes,
        created_at=instant(row.created_at_ms),
        request=signed_get(ctx, row.key, filename=f"{job_id}-step-{row.step}.safetensors"),
    )


def _artifact(ctx: Context, row: ArtifactRecord) -> Artifact:
    return Artifact(
        name=row.name,
        sha256=row.sha256,
        size_bytes=row.size_bytes,
        media_type=sendable_media_type(row.media_type),
        created_at=instant(row.created_at_ms),
        request=signed_get(ctx, row.key, filename=row.name, media_type=sendable_media_type(row.media_type)),
    )


def read_artifact(ctx: Context, caller: Caller, job_id: str, name: str, *, most_bytes: int) -> ArtifactBytes:
    """Return one committed result with its bytes. Raises Forbidden, NotFound, TooLarge, and what storage raises."""
    require_scope(caller, Scope.JOBS_READ)
    with ctx.store.read() as tx:
        require_job(tx, caller, job_id)
        row = tx.job_reads.artifact(job_id, name, project_id=caller.project_id)
    if row is None:
        raise NotFound(f"{job_id} has no result {name[:64]}")
    if row.size_bytes > most_bytes:
        raise TooLarge(f"{name} has {row.size_bytes} bytes; download it by its signed URL")
    return ArtifactBytes(media_type=sendable_media_type(row.media_type), content=b"".join(ctx.blobs.read(row.key)))


def read_events(ctx: Context, caller: Caller, job_id: str, after: int, limit: int) -> EventPage:
    """Return events with ids above `after`, oldest first; `next` is the last one's id when there are more.

    A page may end before `limit`, for its bytes.

    Raises Forbidden, NotFound, InvalidInput.
    """
    require_scope(caller, Scope.JOBS_READ)
    check_limit(limit)
    check_after(after, where="after")
    with ctx.store.read() as tx:
        require_job(tx, caller, job_id)
        names = machine_names(tx, ctx, caller)
        rows = tx.job_reads.events(
            job_id,
            project_id=caller.project_id,
            after=after,
            limit=limit,
            most_bytes=ctx.policy.max_page_bytes,
        )
    events = tuple(
        Event(
            id=row.id,
            job_id=row.job_id,
            type=row.type,
            at=instant(row.at_ms),
            attempt=row.attempt_number,
            data=names.event_data(row.data),
        )
        for row in rows.items
    )
    return EventPage(items=events, next=str(events[-1].id) if rows.more else None)


def read_logs(ctx: Context, caller: Caller, job_id: str, after: int, limit: int) -> LogPage:
    """Return lines with ids above `after`, oldest first; `next` is the last one's id when there are more.

    A page may end before `limit`, for its bytes.

    Raises Forbidden, NotFound, InvalidInput.
    """
    require_scope(caller, Scope.JOBS_READ)
    check_limit(limit)
    check_after(after, where="after")
    with ctx.store.read() as tx:
        require_job(tx, caller, job_id)
        rows = tx.job_reads.logs(
            job_id,
            project_id=caller.project_id,
            after=after,
            limit=limit,
            most_bytes=ctx.policy.max_page_bytes,
        )
    lines = tuple(
        LogLine(id=row.id, attempt=row.attempt_number, at=instant(row.at_ms), line=row.line) for row in rows.items
    )
    return LogPage(items=lines, next=str(lines[-1].id) if rows.more else None)


def read_metrics(ctx: Context, caller: Caller, job_id: str, after_step: int, limit: int) -> MetricPage:
    """Return points of steps above `after_step` (-1 for all), ascending; `next` is the last step when there are
    more.

    A page may end before `limit`, for its bytes.

    Raises Forbidden, NotFound, InvalidInput.
    """
    require_scope(caller, Scope.JOBS_READ)
    check_limit(limit)
    check_after(after_step, where="after_step")
    with ctx.store.read() as tx:
        require_job(tx, caller, job_id)
        rows = tx.job_reads.metrics(
            job_id,
            project_id=caller.project_id,
            after_step=after_step,
            limit=limit,
            most_bytes=ctx.policy.max_page_bytes,
        )
    points = tuple(metric_point(row) for row in rows.items)
    return MetricPage(items=points, next=str(points[-1].step) if rows.more else None)


def metric_point(row: MetricRecord) -> MetricPoint:
    """Return the reply's form of the metrics of a step."""
    return MetricPoint(step=row.step, attempt=row.attempt_number, at=instant(row.at_ms), values=row.values)


def read_origin(ctx: Context, caller: Caller, sha256: str) -> tuple[str, int] | None:
    """Return (job, step) of the checkpoint of the project that has these bytes, with which another job began; None
    where it is deleted, or never was one. Raises Forbidden.
    """
    require_scope(caller, Scope.JOBS_READ)
    with ctx.store.read() as tx:
        return tx.job_reads.checkpoint_with(sha256, project_id=caller.project_id)
