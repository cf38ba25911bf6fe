"""Import an archive of a project into the project of one's key. A call that broke off goes on when it is repeated."""

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from giornata.client.archives.project_archive import ArchivedHistory, ArchivedJob, ProjectArchive, opened_archive
from giornata.client.client import Client
from giornata.domain.errors import Fault, InvalidInput, Unavailable
from giornata.domain.generation.picture import PictureState
from giornata.domain.jobs.job import TERMINAL, JobState
from giornata.domain.jobs.sweep import SWEEP_KIND
from giornata.protocol.events import EventType
from giornata.protocol.model import Message
from giornata.protocol.models import AddModel
from giornata.protocol.project.project_transfer import (
    MOST_ERROR_CHARS,
    MOST_EVENTS,
    MOST_IMPORTED_PICTURES,
    MOST_ROWS,
    ImportedArtifact,
    ImportedCheckpoint,
    ImportedEvent,
    ImportedLine,
    ImportedMetrics,
    ImportedPicture,
    ImportHistory,
    ImportJob,
)

Progress = Callable[[str], None]
"""Called with the id, in the archive, of what is imported next."""
FILES_AT_ONCE = 50
BYTES_AT_ONCE = 2**30
PAGE_BYTES = 2**18
JOB_ID = re.compile(r"job_[0-9a-z]+")
M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportSummary:
    """The numbers of what was imported. `jobs` has the new id of each job by its old one."""

    project_id: str
    datasets: int
    models: int
    jobs: dict[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


def import_project(client: Client, path: Path, *, progress: Progress = lambda _: None) -> ImportSummary:
    """Verify the archive whole, then send what the project does not have yet, and return the sums.

    Raises InvalidInput with every fault of the archive before anything is sent, and what the server says.
    """
    with opened_archive(path) as archive, tempfile.TemporaryDirectory(prefix="giornata-import-") as folder:
        _refuse_unfit_jobs(archive)
        _refuse_other_models(client, archive)
        _send_files(client, archive, Path(folder), progress)
        for dataset in archive.datasets:
            progress(dataset.id)
            client.create_dataset(dataset.items)
        for model in archive.models:
            progress(model.name)
            client.add_model(
                AddModel(
                    name=model.name, sha256=model.sha256, kind=model.kind, family=model.family, pinned=model.pinned
                )
            )
        imported, left_out = dict[str, str](), list[str]()
        for archived in archive.jobs:
            if archived.job.kind == SWEEP_KIND:
                left_out.append(archived.job.id)
                continue
            progress(archived.job.id)
            made = client.import_job(_imported_job(archived, imported, archive.manifest.exported_at))
            imported[archived.job.id] = made.id
            _send_pictures(client, archive, archived, made.id, Path(folder))
            for page in _history_pages(archive.history(archived.job.id), imported):
                client.import_history(made.id, page)
        return ImportSummary(
            project_id=client.me().project_id,
            datasets=len(archive.datasets),
            models=len(archive.models),
            jobs=imported,
            left_out=tuple(left_out),
        )


def _refuse_unfit_jobs(archive: ProjectArchive) -> None:
    """Raises InvalidInput for jobs and histories that no server takes, before anything is sent."""
    faults = []
    for archived in archive.jobs:
        try:
            _imported_job(archived, {}, archive.manifest.exported_at)
            for _ in _history_pages(archive.history(archived.job.id), {}):
                pass
            for _ in _imported_pictures(archived):
                pass
        except ValidationError as error:
            faults += [
                Fault(where=".".join(map(str, (archived.job.id, *each["loc"]))), message=each["msg"])
                for each in error.errors()
            ]
    if faults:
        raise InvalidInput(faults)


def _refuse_other_models(client: Client, archive: ProjectArchive) -> None:
    """Raises InvalidInput for models whose names stand for other files in the project."""
    there = {each.name: each.sha256 for each in client.models() if not each.shared}
    faults = [
        Fault(
            where=f"models.{each.name}",
            message="this project has another model of this name",
            hint="remove or rename that model first",
        )
        for each in archive.models
        if there.get(each.name, each.sha256) != each.sha256
    ]
    if faults:
        raise InvalidInput(faults)


def _send_files(client: Client, archive: ProjectArchive, folder: Path, progress: Progress) -> None:
    """Send every file that is no picture of an order: those go where the pictures of their order lie."""
    wanted = {item.sha256 for dataset in archive.datasets for item in dataset.items}
    wanted |= {model.sha256 for model in archive.models if model.sha256 is not None}
    wanted |= {sha256 for each in archive.jobs for sha256 in each.sha256s(pictures=False)}
    sizes = {sha256: size_bytes for sha256, size_bytes in archive.sizes().items() if sha256 in wanted}
    for batch in _batches(sizes):
        progress(f"{len(batch)} files")
        paths = [archive.extract(sha256, folder) for sha256 in batch]
        client.upload_files(paths)
        for path in paths:
            path.unlink()


def _batches(sizes: dict[str, int]) -> Iterator[list[str]]:
    batch, size_bytes = list[str](), 0
    for sha256, each_bytes in sizes.items():
        if batch and (len(batch) == FILES_AT_ONCE or size_bytes + each_bytes > BYTES_AT_ONCE):
            yield batch
            batch, size_bytes = [], 0
        batch.append(sha256)
        size_bytes += each_bytes
    if batch:
        yield batch


def _imported_job(archived: ArchivedJob, imported: dict[str, str], exported_at: datetime) -> ImportJob:
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
        checkpoints=tuple(ImportedCheckpoint(step=each.step, sha256=each.sha256) for each in archived.checkpoints),
        artifacts=tuple(
            ImportedArtifact(name=each.name, sha256=each.sha256, media_type=each.media_type)
            for each in archived.artifacts
        ),
        history_follows=True,
    )


def _send_pictures(client: Client, archive: ProjectArchive, archived: ArchivedJob, job_id: str, folder: Path) -> None:
    """Send the pictures of an order that had ended: bytes to storage, then what is known of them."""
    for page in _pages(_imported_pictures(archived), most=MOST_IMPORTED_PICTURES):
        by_number = {each.number: each for each in page}
        uploads = client.import_pictures(job_id, page).uploads
        for upload in uploads:
            picture = by_number[upload.number]
            path = archive.extract(picture.sha256 or "", folder)
            client.upload_picture(upload.request, path, sha256=path.name, size_bytes=path.stat().st_size)
            path.unlink()
        if uploads and client.import_pictures(job_id, page).uploads:
            raise Unavailable(f"storage has lost pictures of {job_id} that were just sent; repeat the import")


def _imported_pictures(archived: ArchivedJob) -> Iterator[ImportedPicture]:
    for each in archived.pictures:
        if each.state in {PictureState.SUCCEEDED, PictureState.FAILED}:
            has_bytes = each.sha256 is not None
            yield ImportedPicture(
                number=each.number,
                state="succeeded" if each.state is PictureState.SUCCEEDED else "failed",
                place=each.id,
                sha256=each.sha256,
                size_bytes=each.size_bytes if has_bytes else None,
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


def _history_pages(history: ArchivedHistory, imported: dict[str, str]) -> Iterator[ImportHistory]:
    """Yield the requests that write a history. The last of them ends the import of the job."""
    points = (
        ImportedMetrics(step=each.step, attempt=each.attempt, at=each.at, values=each.values)
        for each in history.metrics
    )
    for metrics in _pages(points):
        yield ImportHistory(metrics=metrics)
    numbered = (
        ImportedLine(number=number, attempt=each.attempt, at=each.at, line=each.line)
        for number, each in enumerate(history.lines)
    )
    for lines in _pages(numbered):
        yield ImportHistory(lines=lines)
    for events in _pages(_imported_events(history, imported)):
        yield ImportHistory(events=events)
    yield ImportHistory(is_last=True)


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


def _pages(items: Iterable[M], *, most: int = MOST_ROWS) -> Iterator[tuple[M, ...]]:
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
