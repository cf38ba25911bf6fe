"""The archive of a project: one tar file.

files/SHA256        the bytes of pictures, models, checkpoints and results, each once
datasets/ID.json    a dataset with its captions
models.json         models that have a name and bytes
jobs/ID.json        see `ArchivedJob`
history/ID.json     see `ArchivedHistory`
manifest.json       see `ArchiveManifest`; it comes last, and a file without it was cut off
"""

import hashlib
import io
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, BinaryIO, TypeVar

from pydantic import BaseModel, ValidationError

from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.generation.picture import SafetyPolicy
from giornata.protocol.jobs import Event, Job, LogLine, MetricPoint
from giornata.protocol.model import FileName, ObjectSize, Sha256
from giornata.protocol.models import RegisteredModel
from giornata.protocol.orders.order_pictures import OrderPicture
from giornata.protocol.uploads import Dataset

FORMAT = 1
MANIFEST, MODELS = "manifest.json", "models.json"
FILES, DATASETS, JOBS, HISTORY = "files/", "datasets/", "jobs/", "history/"
PRIVATE_FILE = 0o600
CHUNK_BYTES = 2**20
MOST_DOCUMENT_BYTES = 2**28
MOST_FAULTS = 20
D = TypeVar("D", bound=BaseModel)


class ArchivedFile(BaseModel):
    """A member of the archive, with the size and the hash of its bytes."""

    name: str
    sha256: Sha256
    size_bytes: int


class ArchiveManifest(BaseModel):
    """The last member of an archive: every other member, in the order in which they were written.

    `safety` is the project's policy for unsafe pictures at the export.
    """

    format: int
    giornata: str
    project_id: str
    exported_at: datetime
    safety: SafetyPolicy = SafetyPolicy.OFF
    members: list[ArchivedFile]


class ArchivedCheckpoint(BaseModel):
    """A checkpoint of a job, whose bytes are a member."""

    step: int
    sha256: Sha256
    size_bytes: ObjectSize


class ArchivedArtifact(BaseModel):
    """A result of a job, whose bytes are a member."""

    name: FileName
    sha256: Sha256
    size_bytes: ObjectSize
    media_type: str


class ArchivedPicture(OrderPicture):
    """A picture of an order, whose bytes are a member if it has any."""

    starred: bool = False
    tags: tuple[str, ...] = ()


class ArchivedJob(BaseModel):
    """A job as its owner saw it. `inputs` are files that its spec names."""

    job: Job
    checkpoints: list[ArchivedCheckpoint]
    artifacts: list[ArchivedArtifact]
    pictures: list[ArchivedPicture]
    inputs: list[Sha256]

    def sha256s(self, *, pictures: bool = True) -> list[str]:
        """Return the hash of each file of the job; the pictures of an order may be left out."""
        checkpoints = [each.sha256 for each in self.checkpoints]
        drawn = [each.sha256 for each in self.pictures if each.sha256 is not None] if pictures else []
        return [*checkpoints, *(each.sha256 for each in self.artifacts), *drawn, *self.inputs]


class ArchivedHistory(BaseModel):
    """The metrics, the log and the events of a job."""

    metrics: list[MetricPoint]
    lines: list[LogLine]
    events: list[Event]


class ArchivedModels(BaseModel):
    """The models of the project that have a name and bytes."""

    items: list[RegisteredModel]


class ArchiveWriter:
    """Writes the members of an archive. Equal bytes are written once."""

    def __init__(self, file: BinaryIO) -> None:
        self._tar = tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT)  # noqa: SIM115
        self.members: list[ArchivedFile] = []
        self._written: set[str] = set()

    def has_file(self, sha256: str) -> bool:
        """Return True when these bytes are in the archive."""
        return sha256 in self._written

    def add_file(self, sha256: str, path: Path) -> None:
        """Add the verified bytes of a file under their hash."""
        with path.open("rb") as file:
            self._add(FILES + sha256, sha256, path.stat().st_size, file)
        self._written.add(sha256)

    def add_document(self, name: str, document: BaseModel) -> None:
        """Add a document as JSON."""
        content = document.model_dump_json().encode()
        self._add(name, hashlib.sha256(content).hexdigest(), len(content), io.BytesIO(content))

    def close(self, manifest: ArchiveManifest) -> None:
        """Write the manifest, which ends the archive."""
        self.add_document(MANIFEST, manifest)
        self._tar.close()

    def _add(self, name: str, sha256: str, size_bytes: int, file: IO[bytes]) -> None:
        member = tarfile.TarInfo(name)
        member.mode, member.size = PRIVATE_FILE, size_bytes
        self._tar.addfile(member, file)
        self._tar.members.clear()  # type: ignore[attr-defined]  # tarfile keeps what it has written, for listings
        self.members.append(ArchivedFile(name=name, sha256=sha256, size_bytes=size_bytes))


class ProjectArchive:
    """An archive that was verified whole: every byte, every document, every reference between them."""

    def __init__(self, tar: tarfile.TarFile, path: Path) -> None:
        self._tar, self._path, self._faults = tar, path, list[Fault]()
        self._members = _members(tar, path)
        self.manifest = self._manifest()
        self._verify_bytes()
        self.datasets = self._documents(DATASETS, Dataset)
        self.jobs = sorted(self._documents(JOBS, ArchivedJob), key=lambda each: (each.job.created_at, each.job.id))
        models = self._document(MODELS, ArchivedModels)
        self.models = [] if models is None else models.items
        self._verify_histories()
        self._verify_references()
        if self._faults:
            raise self._refusal()

    def sizes(self) -> Mapping[str, int]:
        """Return the size in bytes of each file, by its hash."""
        return {each.sha256: each.size_bytes for each in self.manifest.members if each.name.startswith(FILES)}

    def history(self, job_id: str) -> ArchivedHistory:
        """Return the history of a job."""
        with self._open(f"{HISTORY}{job_id}.json") as file:
            return ArchivedHistory.model_validate_json(file.read())

    def extract(self, sha256: str, folder: Path) -> Path:
        """Copy a file into the folder, under its hash."""
        path = folder / sha256
        with self._open(FILES + sha256) as source, path.open("wb") as target:
            while chunk := source.read(CHUNK_BYTES):
                target.write(chunk)
        return path

    def _manifest(self) -> ArchiveManifest:
        found = self._document(MANIFEST, ArchiveManifest)
        if found is not None and found.format == FORMAT:
            return found
        if found is not None:
            self._fault(MANIFEST, f"has format {found.format}; this version reads format {FORMAT}")
        elif not self._faults:
            self._fault(MANIFEST, "is missing: the file was cut off, or is no export of a project")
        raise self._refusal()

    def _verify_bytes(self) -> None:
        listed = {each.name: each for each in self.manifest.members}
        for name in sorted(self._members.keys() - listed.keys() - {MANIFEST}):
            self._fault(name, "is not in the manifest")
        for name, each in listed.items():
            if name not in self._members:
                self._fault(name, "is missing")
                continue
            with self._open(name) as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
            named = name.removeprefix(FILES) if name.startswith(FILES) else each.sha256
            if found != each.sha256 or found != named:
                self._fault(name, f"has other bytes than were exported: they hash to {found}")

    def _verify_histories(self) -> None:
        for each in self.jobs:
            name = f"{HISTORY}{each.job.id}.json"
            if name not in self._members:
                self._fault(name, f"is missing: {each.job.id} has no history")
            else:
                self._document(name, ArchivedHistory)

    def _verify_references(self) -> None:
        there = {name.removeprefix(FILES) for name in self._members if name.startswith(FILES)}
        wanted = [(f"{DATASETS}{each.id}.json", [item.sha256 for item in each.items]) for each in self.datasets]
        wanted += [(f"{JOBS}{each.job.id}.json", each.sha256s()) for each in self.jobs]
        wanted.append((MODELS, [each.sha256 for each in self.models if each.sha256 is not None]))
        for name, sha256s in wanted:
            for sha256 in sorted(set(sha256s) - there):
                self._fault(name, f"names bytes that are not in the archive: {sha256}")

    def _documents(self, folder: str, document: type[D]) -> list[D]:
        names = sorted(name for name in self._members if name.startswith(folder))
        return [found for name in names if (found := self._document(name, document)) is not None]

    def _document(self, name: str, document: type[D]) -> D | None:
        member = self._members.get(name)
        if member is None:
            return None
        if member.size > MOST_DOCUMENT_BYTES:
            self._fault(name, f"has {member.size} bytes; a document has at most {MOST_DOCUMENT_BYTES}")
            return None
        with self._open(name) as file:
            try:
                return document.model_validate_json(file.read())
            except ValidationError as error:
                self._fault(name, f"cannot be read: {error.errors()[0]['msg']}")
                return None

    @contextmanager
    def _open(self, name: str) -> Iterator[IO[bytes]]:
        file = self._tar.extractfile(self._members[name])
        if file is None:
            raise InvalidInput([Fault(where=name, message="is no file", hint="export the project once more")])
        with file:
            yield file

    def _fault(self, where: str, message: str) -> None:
        self._faults.append(Fault(where=where, message=message, hint="export the project once more"))

    def _refusal(self) -> InvalidInput:
        shown, more = self._faults[:MOST_FAULTS], len(self._faults) - MOST_FAULTS
        if more > 0:
            shown.append(Fault(where=str(self._path), message=f"has {more} more faults"))
        return InvalidInput(shown)


@contextmanager
def opened_archive(path: Path) -> Iterator[ProjectArchive]:
    """Open an archive. Raises InvalidInput with every fault of a file that is no whole archive."""
    try:
        tar = tarfile.open(path, mode="r:")  # noqa: SIM115 - closed below
    except (OSError, tarfile.TarError) as error:
        message, hint = f"cannot be read as an archive: {error}", "name a file of: giornata project export"
        raise InvalidInput([Fault(where=str(path), message=message, hint=hint)]) from None
    with tar:
        yield ProjectArchive(tar, path)


def _members(tar: tarfile.TarFile, path: Path) -> dict[str, tarfile.TarInfo]:
    try:
        members = tar.getmembers()
    except tarfile.TarError as error:
        raise InvalidInput(
            [Fault(where=str(path), message=f"was cut off: {error}", hint="export the project once more")]
        ) from None
    times = Counter(member.name for member in members)
    wrong = [member.name for member in members if not member.isreg() or times[member.name] > 1]
    if wrong:
        raise InvalidInput(
            Fault(
                where=name,
                message="is not a plain file, or is in the archive twice",
                hint="export the project once more",
            )
            for name in dict.fromkeys(wrong[:MOST_FAULTS])
        )
    return {member.name: member for member in members}
