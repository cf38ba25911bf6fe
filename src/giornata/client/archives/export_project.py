"""Export a project: read all that it owns over HTTP, and write it into one archive."""

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from giornata import __version__
from giornata.client.archives.project_archive import (
    DATASETS,
    FORMAT,
    HISTORY,
    JOBS,
    MODELS,
    ArchivedArtifact,
    ArchivedCheckpoint,
    ArchivedHistory,
    ArchivedJob,
    ArchivedModels,
    ArchivedPicture,
    ArchiveManifest,
    ArchiveWriter,
)
from giornata.client.client import Client
from giornata.domain.generation.picture import ORDER_KINDS, SafetyPolicy
from giornata.protocol.jobs import Job
from giornata.protocol.orders.order_pictures import OrderPicture
from giornata.protocol.specs import PLATFORM_KINDS, input_files
from giornata.protocol.uploads import Download

Progress = Callable[[str], None]
"""Called with the id of a dataset, a model or a job before it is read."""
NOT_EXPORTED = {"created_by": None}
"""Fields that an export leaves out: the people of a project stay at home."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSummary:
    """The numbers of what an archive holds. `running` jobs had not ended, and come in as canceled ones."""

    project_id: str
    datasets: int
    models: int
    jobs: int
    running: tuple[str, ...]
    files: int
    size_bytes: int


def export_project(client: Client, file: BinaryIO, *, progress: Progress = lambda _: None) -> ExportSummary:
    """Write the project of the client's key into `file`. The server goes on working meanwhile.

    Raises Forbidden unless the key governs the project, and NotFound or InvalidInput when something was deleted
    meanwhile.
    """
    project_id = client.me().project_id
    writer = ArchiveWriter(file)
    with tempfile.TemporaryDirectory(prefix="giornata-export-") as folder:
        export = _ProjectExport(client, writer, Path(folder), progress)
        datasets = export.add_datasets()
        models = export.add_models()
        export.find_marks()
        jobs = [job for job in client.jobs() if job.kind not in PLATFORM_KINDS]
        for job in jobs:
            export.add_job(job.id)
    manifest = ArchiveManifest(
        format=FORMAT,
        giornata=__version__,
        project_id=project_id,
        exported_at=datetime.now(UTC),
        safety=_policy_of(client, project_id),
        members=list(writer.members),
    )
    writer.close(manifest)
    return ExportSummary(
        project_id=project_id,
        datasets=datasets,
        models=models,
        jobs=len(jobs),
        running=tuple(job.id for job in jobs if job.ended_at is None),
        files=export.files,
        size_bytes=sum(each.size_bytes for each in manifest.members),
    )


class _ProjectExport:
    """Fetches what belongs to a project, and adds it to an archive: bytes before the document that names them."""

    def __init__(self, client: Client, writer: ArchiveWriter, folder: Path, progress: Progress) -> None:
        self._client, self._writer, self._folder, self._progress = client, writer, folder, progress
        self.files = 0
        self._marks = dict[tuple[str, int], dict[str, Any]]()

    def find_marks(self) -> None:
        """Read the stars and tags of all pictures."""
        for each in self._client.find_pictures():
            if each.starred or each.tags:
                self._marks[each.order_id, each.number] = {"starred": each.starred, "tags": each.tags}

    def add_datasets(self) -> int:
        """Add all datasets with their pictures, and return their number."""
        ids = [dataset.id for dataset in self._client.datasets()]
        for dataset_id in ids:
            self._progress(dataset_id)
            dataset = self._client.get_dataset(dataset_id)
            self._add_blobs(item.sha256 for item in dataset.items)
            self._writer.add_document(f"{DATASETS}{dataset_id}.json", dataset.model_copy(update=NOT_EXPORTED))
        return len(ids)

    def add_models(self) -> int:
        """Add the project's own models that have bytes and a name, and return their number."""
        models = [
            each for each in self._client.models() if _is_own(each.sha256, each.shared, each.name, each.reference)
        ]
        for model in models:
            self._progress(model.name)
            self._add_blobs([model.sha256] if model.sha256 is not None else [])
        items = [model.model_copy(update=NOT_EXPORTED) for model in models]
        self._writer.add_document(MODELS, ArchivedModels(items=items))
        return len(models)

    def add_job(self, job_id: str) -> None:
        """Add a job with its files and its history."""
        self._progress(job_id)
        job = self._client.get_job(job_id)
        checkpoints, artifacts = self._client.checkpoints(job_id), self._client.artifacts(job_id)
        files = [
            Download(sha256=each.sha256, size_bytes=each.size_bytes, request=each.request) for each in checkpoints
        ]
        files += [
            Download(sha256=each.sha256, size_bytes=each.size_bytes, request=each.request) for each in artifacts
        ]
        for found in files:
            self._add(found)
        pictures = list(self._client.pictures(job_id)) if job.kind in ORDER_KINDS else []
        for picture in pictures:
            if picture.request is not None and picture.sha256 is not None and picture.size_bytes is not None:
                self._add(Download(sha256=picture.sha256, size_bytes=picture.size_bytes, request=picture.request))
        inputs = sorted(set(input_files(job.kind, job.spec).values()))
        self._add_blobs(inputs)
        document = ArchivedJob(
            job=_without_people(job),
            checkpoints=[ArchivedCheckpoint(**each.model_dump(exclude={"request"})) for each in checkpoints],
            artifacts=[ArchivedArtifact(**each.model_dump(exclude={"request"})) for each in artifacts],
            pictures=[self._archived_picture(job_id, each) for each in pictures],
            inputs=inputs,
        )
        self._writer.add_document(f"{JOBS}{job_id}.json", document)
        history = ArchivedHistory(
            metrics=list(self._client.metrics(job_id)),
            lines=list(self._client.logs(job_id)),
            events=list(self._client.events(job_id)),
        )
        self._writer.add_document(f"{HISTORY}{job_id}.json", history)

    def _archived_picture(self, job_id: str, picture: OrderPicture) -> ArchivedPicture:
        """Return the picture without its URL, and without a hash where there are no bytes."""
        gone = {"request"} if picture.request else {"request", "sha256", "size_bytes"}
        marks = self._marks.get((job_id, picture.number), {})
        return ArchivedPicture(**picture.model_dump(exclude=gone), **marks)

    def _add_blobs(self, sha256s: Iterable[str]) -> None:
        missing = [each for each in dict.fromkeys(sha256s) if not self._writer.has_file(each)]
        for found in self._client.export_files(missing):
            self._add(found)

    def _add(self, found: Download) -> None:
        if self._writer.has_file(found.sha256):
            return
        path = self._client.download_export(found, self._folder / found.sha256)
        self._writer.add_file(found.sha256, path)
        path.unlink()
        self.files += 1


def _policy_of(client: Client, project_id: str) -> SafetyPolicy:
    found = (each.safety for each in client.projects() if each.id == project_id)
    return next(found, None) or SafetyPolicy.OFF


def _is_own(sha256: str | None, shared: bool, name: str, reference: str) -> bool:
    return sha256 is not None and not shared and name != reference


def _without_people(job: Job) -> Job:
    return job.model_copy(update=NOT_EXPORTED)
