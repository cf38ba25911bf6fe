"""Import an archive of a project into the project of one's key. A call that broke off goes on when it is repeated."""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from giornata.client.archives.import_requests import (
    history_pages,
    imported_job,
    imported_pictures,
    pages,
    without_deleted_jobs,
)
from giornata.client.archives.project_archive import ArchivedJob, ProjectArchive, opened_archive
from giornata.client.client import Client
from giornata.domain.errors import Fault, InvalidInput, Unavailable
from giornata.domain.jobs.sweep import SWEEP_KIND
from giornata.protocol.models import AddModel
from giornata.protocol.project.project_transfer import MOST_IMPORTED_PICTURES

Progress = Callable[[str], None]
"""Called with the id, in the archive, of what is imported next."""
FILES_AT_ONCE = 50
BYTES_AT_ONCE = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportSummary:
    """The numbers of what was imported. `jobs` has the new id of each job by its old one. `withheld` pictures have no
    bytes: the project blocks unsafe pictures, and these are unsafe or were never checked. `left_out` are sweeps all
    of whose jobs were deleted before the export.
    """

    project_id: str
    datasets: int
    models: int
    jobs: dict[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    withheld: int = 0


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
        imported, left_out, withheld = dict[str, str](), list[str](), 0
        # A sweep comes after its jobs.
        for found in sorted(archive.jobs, key=lambda each: each.job.kind == SWEEP_KIND):
            archived = without_deleted_jobs(found, imported)
            if archived.job.kind == SWEEP_KIND and not archived.job.spec["jobs"]:
                left_out.append(archived.job.id)
                continue
            progress(archived.job.id)
            made = client.import_job(imported_job(archived, imported, archive.manifest.exported_at))
            imported[archived.job.id] = made.id
            withheld += _send_pictures(client, archive, archived, made.id, Path(folder))
            for page in history_pages(archived, archive.history(archived.job.id), imported):
                client.import_history(made.id, page)
        return ImportSummary(
            project_id=client.me().project_id,
            datasets=len(archive.datasets),
            models=len(archive.models),
            jobs=imported,
            left_out=tuple(left_out),
            withheld=withheld,
        )


def _refuse_unfit_jobs(archive: ProjectArchive) -> None:
    """Raises InvalidInput for jobs and histories that no server takes, before anything is sent."""
    faults = []
    for archived in archive.jobs:
        try:
            imported_job(archived, {}, archive.manifest.exported_at)
            for _ in history_pages(archived, archive.history(archived.job.id), {}):
                pass
            for _ in imported_pictures(archived, archive.manifest.safety):
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


def _send_pictures(client: Client, archive: ProjectArchive, archived: ArchivedJob, job_id: str, folder: Path) -> int:
    """Send the pictures of an order that had ended: bytes to storage, then what is known of them. Return how many
    came in without their bytes."""
    withheld = 0
    for page in pages(imported_pictures(archived, archive.manifest.safety), most=MOST_IMPORTED_PICTURES):
        by_number = {each.number: each for each in page}
        reply = client.import_pictures(job_id, page)
        uploads, withheld = reply.uploads, withheld + len(reply.withheld)
        for upload in uploads:
            picture = by_number[upload.number]
            path = archive.extract(picture.sha256 or "", folder)
            client.upload_picture(upload.request, path, sha256=path.name, size_bytes=path.stat().st_size)
            path.unlink()
        if uploads and client.import_pictures(job_id, page).uploads:
            raise Unavailable(f"storage has lost pictures of {job_id} that were just sent; repeat the import")
    return withheld
