"""The requests of an import, made of the documents of an archive."""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Any, TypeVar

from giornata.client.archives.project_archive import ArchivedHistory, ArchivedJob
from giornata.domain.generation.picture import ORDER_KINDS, PictureState, SafetyPolicy
from giornata.domain.jobs.job import TERMINAL, JobState
from giornata.domain.jobs.sweep import SWEEP_KIND
from giornata.protocol.events import EventType
from giornata.protocol.model import Message
from giornata.protocol.project.project_transfer import (
    MOST_ERROR_CHARS,
    MOST_EVENTS,
    MOST_MESSAGE_CHARS,
    MOST_ROWS,
    ImportedArtifact,
    ImportedAttempt,
    ImportedCheckpoint,
    ImportedEvent,
    ImportedLine,
    ImportedMetrics,
    ImportedPicture,
    ImportHistory,
    ImportJob,
)

PAGE_BYTES = 2**18
JOB_ID = re.compile(r"job_[0-9a-z]+")
M = TypeVar("M", bound=Message)


def without_deleted_jobs(archived: ArchivedJob, imported: Mapping[str, str]) -> ArchivedJob:
    """Return a sweep without those of its jobs that were deleted before the export; any other job as it is."""
    if archived.job.kind != SWEEP_KIND:
        return archived
    spec = archived.job.spec
    members = [each for each in spec.get("jobs", ()) if each.get("job") in imported]
    return archived.model_copy(update={"job": archived.job.model_copy(update={"spec": {**spec, "jobs": members}})})


def imported_job(archived: ArchivedJob, imported: dict[str, str], exported_at: datetime) -> ImportJob:
    """Return the request for a job, with the new ids of the jobs that it names.

    A job that had not ended is canceled: a retry goes on from its checkpoints.
    """
    job = archived.job
    state = job.state if job.state in TERMINAL else JobState.CANCELED
    ended_at = job.ended_at or max(job.created_at, job.started_at or job.created_at, exported_at)
    return ImportJob(
        imported_from=job.id,
        kind=job.kind,
        name=None if job.name == job.id else _renamed(job.name, imported),
        state=state.value,
        spec=_renamed(job.spec, imported),
        labels=_renamed(job.labels, imported),
        priority=job.priority,
        min_vram_bytes=job.min_vram_bytes,
        step=job.step,
        error=None if job.error is None else job.error[:MOST_ERROR_CHARS],
        result=_renamed(job.result, imported),
        retry_of=None if job.retry_of is None else imported.get(job.retry_of),
        created_at=job.created_at,
        started_at=job.started_at,
        ended_at=ended_at,
        cost_micro_usd=job.cost_micro_usd + (job.imported_cost_micro_usd or 0),
        checkpoints=tuple(ImportedCheckpoint(step=each.step, sha256=each.sha256) for each in archived.checkpoints),
        artifacts=tuple(
            ImportedArtifact(name=each.name, sha256=each.sha256, media_type=each.media_type)
            for each in archived.artifacts
        ),
        history_follows=True,
    )


def imported_pictures(archived: ArchivedJob, policy: SafetyPolicy) -> Iterator[ImportedPicture]:
    """Yield the pictures that had ended. They were drawn under the project's policy, or under that of their order."""
    safety = SafetyPolicy.BLOCK if archived.job.spec.get("safety_checker") else policy
    for each in archived.pictures:
        if each.state in {PictureState.SUCCEEDED, PictureState.FAILED}:
            has_bytes = each.sha256 is not None
            yield ImportedPicture(
                number=each.number,
                state="succeeded" if each.state is PictureState.SUCCEEDED else "failed",
                place=each.id,
                sha256=each.sha256,
                size_bytes=each.size_bytes if has_bytes else None,
                safety=safety,
                flags=each.flags,  # pydantic refuses one that it does not know
                error=each.error,
                starred=each.starred,
                tags=each.tags,
            )


def _renamed(value: Any, imported: dict[str, str]) -> Any:
    """Return JSON in which the id of each imported job is the new one."""
    if isinstance(value, str):
        return JOB_ID.sub(lambda found: imported.get(found[0], found[0]), value)
    if isinstance(value, dict):
        return {name: _renamed(each, imported) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_renamed(each, imported) for each in value]
    return value


def history_pages(
    archived: ArchivedJob, history: ArchivedHistory, imported: dict[str, str]
) -> Iterator[ImportHistory]:
    """Yield the requests that write a history. The last of them ends the import of the job."""
    points = (
        ImportedMetrics(step=each.step, attempt=each.attempt, at=each.at, values=each.values)
        for each in history.metrics
    )
    for metrics in pages(points):
        yield ImportHistory(metrics=metrics)
    numbered = (
        ImportedLine(number=number, attempt=each.attempt, at=each.at, line=each.line)
        for number, each in enumerate(history.lines)
    )
    for lines in pages(numbered):
        yield ImportHistory(lines=lines)
    for attempts in pages(_imported_attempts(archived, imported)):
        yield ImportHistory(attempts=attempts)
    for events in pages(_imported_events(history, imported)):
        yield ImportHistory(events=events)
    yield ImportHistory(is_last=True)


def _imported_attempts(archived: ArchivedJob, imported: dict[str, str]) -> Iterator[ImportedAttempt]:
    """Yield the attempts at a job. One that had not ended ends when it was last sure to go on: with its lease."""
    if archived.job.kind in ORDER_KINDS:
        return
    for each in archived.job.attempts:
        ended_at = each.ended_at or each.lease_expires_at
        message = None if each.message is None else each.message[:MOST_MESSAGE_CHARS]
        yield ImportedAttempt(
            ended_at=max(ended_at, each.first_step_at or each.started_at),
            message=_renamed(message, imported),
            **each.model_dump(exclude={"ended_at", "message", "blame"}),
        )


def _imported_events(history: ArchivedHistory, imported: dict[str, str]) -> Iterator[ImportedEvent]:
    """Yield the first events of a job, numbered in their order, without an earlier `job.imported`."""
    kept = (each for each in history.events if each.type != EventType.JOB_IMPORTED)
    for number, each in enumerate(islice(kept, MOST_EVENTS)):
        yield ImportedEvent(
            number=number,
            type=each.type,  # pydantic refuses one that it does not know
            attempt=each.attempt,
            at=each.at,
            data=_renamed(each.data, imported),
        )


def pages(items: Iterable[M], *, most: int = MOST_ROWS) -> Iterator[tuple[M, ...]]:
    """Yield pages of at most `most` rows, which end with the row that reaches PAGE_BYTES."""
    page, size_bytes = list[M](), 0
    for each in items:
        page.append(each)
        size_bytes += len(each.model_dump_json())
        if len(page) == most or size_bytes >= PAGE_BYTES:
            yield tuple(page)
            page, size_bytes = [], 0
    if page:
        yield tuple(page)
