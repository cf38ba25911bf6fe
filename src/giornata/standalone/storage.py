"""The storage of one run, below one prefix.

job.json                              what is trained, on what: written before anything else
checkpoints/STEP-SHA.safetensors      the bytes, named by what they are
checkpoints/STEP.json                 the manifest, written when the bytes are there: only now it exists
caches/SHA.json, caches/SHA-SHA.bin   what need not be computed twice, such as class pictures
results/NAME                          what the run has made
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from giornata.agent.transfer.blob_cache import sha256_of
from giornata.control.ports.blobs import Blobs
from giornata.domain.errors import BlobMismatch, BlobMissing, Fault, InvalidInput
from giornata.protocol.model import Reply, Sha256

CHUNK_BYTES = 2**20
FORMAT = 1
JOB, CHECKPOINTS, CACHES, RESULTS = "job.json", "checkpoints/", "caches/", "results/"


class PictureRecord(Reply):
    """A picture as the run knows it."""

    sha256: Sha256
    name: str
    caption: str | None
    repeats: int = 1
    resolution: int | None = None


class RunRecord(Reply):
    """The run under this prefix: its spec and its pictures."""

    format: int = FORMAT
    job_id: str
    spec: dict[str, Any]
    spec_sha256: Sha256
    data_sha256: Sha256
    pictures: tuple[PictureRecord, ...]
    class_pictures: tuple[PictureRecord, ...] = ()


class CheckpointManifest(Reply):
    """The manifest of one checkpoint that is whole in storage."""

    step: int = Field(ge=0)
    key: str
    sha256: Sha256
    size_bytes: int = Field(ge=1)
    spec_sha256: Sha256
    data_sha256: Sha256
    committed_at: datetime


class _CacheRecord(Reply):
    key: str
    blob: str
    sha256: Sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStorage:
    """Reads and writes the storage of one run. `name` is for people. Methods raise what `Blobs` raises."""

    blobs: Blobs
    name: str

    # ---- the job ----

    def read_job(self) -> RunRecord | None:
        """Return the record of the run in this storage, or None. Raises InvalidInput for an unreadable record."""
        data = self._read(JOB)
        if data is None:
            return None
        try:
            record = RunRecord.model_validate_json(data)
        except ValidationError:
            raise self._refused(f"{self.name} holds a {JOB} that is not of this tool") from None
        if record.format != FORMAT:
            raise self._refused(f"{self.name} is of format {record.format}, and this version knows {FORMAT}")
        return record

    def write_job(self, record: RunRecord) -> None:
        """Write the record of the run."""
        self._write_json(JOB, record)

    def forget_job(self) -> None:
        """Delete the record, so that another run may use the storage. Call this only without a checkpoint."""
        self.blobs.delete(JOB)

    # ---- checkpoints ----

    def checkpoints(self) -> list[CheckpointManifest]:
        """Return every checkpoint whose manifest can be read, highest step first."""
        found = []
        for info in self.blobs.list(CHECKPOINTS):
            if info.key.endswith(".json") and (data := self._read(info.key)) is not None:
                try:
                    found.append(CheckpointManifest.model_validate_json(data))
                except ValidationError:
                    continue  # as good as none: the one before is there
        return sorted(found, key=lambda each: each.step, reverse=True)

    def fetch(self, manifest: CheckpointManifest, path: Path) -> None:
        """Put the bytes of a checkpoint at `path`. Raises BlobMissing, and BlobMismatch for damaged bytes."""
        self._fetch(manifest.key, path, sha256=manifest.sha256)

    def commit(self, step: int, path: Path, record: RunRecord, *, at: datetime) -> CheckpointManifest:
        """Store a checkpoint: its bytes, and then its manifest."""
        sha256 = sha256_of(path)
        key = f"{CHECKPOINTS}{step:08d}-{sha256[:16]}.safetensors"
        stored = self.blobs.write(key, _chunks(path))
        if stored.sha256 != sha256:
            raise BlobMismatch(f"{path} changed while it was stored")
        manifest = CheckpointManifest(
            step=step,
            key=key,
            sha256=sha256,
            size_bytes=stored.size_bytes,
            spec_sha256=record.spec_sha256,
            data_sha256=record.data_sha256,
            committed_at=at,
        )
        self._write_json(_manifest_key(step), manifest)
        return manifest

    def clean(self, *, latest: int, every: int | None) -> list[int]:
        """Remove all checkpoints but the `latest` highest, those whose step `every` divides, and what a killed run
        left half stored before the highest. Returns the steps that went."""
        found = self.checkpoints()
        kept = [each for place, each in enumerate(found) if place < latest or (every and each.step % every == 0)]
        gone = [each for each in found if each not in kept]
        for each in gone:  # the manifest first: what is left of it then is bytes that nobody asks for
            self.blobs.delete(_manifest_key(each.step))
        wanted = {each.key for each in kept} | {_manifest_key(each.step) for each in kept}
        highest = found[0].step if found else 0
        for info in list(self.blobs.list(CHECKPOINTS)):
            step = info.key.removeprefix(CHECKPOINTS)[:8]
            if info.key not in wanted and step.isdigit() and int(step) < highest:
                self.blobs.delete(info.key)
        return [each.step for each in gone]

    # ---- caches and results ----

    def find_cache(self, key: str, path: Path) -> bool:
        """Put at `path` what was kept under `key`; False when there is nothing, or it is damaged."""
        data = self._read(_cache_key(key))
        if data is None:
            return False
        try:
            record = _CacheRecord.model_validate_json(data)
            self._fetch(record.blob, path, sha256=record.sha256)
        except (ValidationError, BlobMissing, BlobMismatch):
            return False
        return record.key == key

    def put_cache(self, key: str, path: Path) -> None:
        """Keep a file under `key`."""
        sha256, place = sha256_of(path), _cache_key(key)
        blob = f"{place.removesuffix('.json')}-{sha256[:16]}.bin"
        self.blobs.write(blob, _chunks(path))
        self._write_json(place, _CacheRecord(key=key, blob=blob, sha256=sha256))

    def put_result(self, name: str, path: Path) -> None:
        """Keep a result beside the checkpoints, for machines whose disk goes with them."""
        self.blobs.write(f"{RESULTS}{name}", _chunks(path))

    def find_result(self, name: str, path: Path) -> bool:
        """Put at `path` what was kept under this name; False when there is nothing."""
        data = self._read(f"{RESULTS}{name}")
        if data is not None:
            path.write_bytes(data)
        return data is not None

    # ---- bytes ----

    def _fetch(self, key: str, path: Path, *, sha256: str) -> None:
        hasher = hashlib.sha256()
        with path.open("wb") as file:
            for chunk in self.blobs.read(key):
                hasher.update(chunk)
                file.write(chunk)
        if hasher.hexdigest() != sha256:
            raise BlobMismatch(f"{key} in {self.name} is damaged: it does not hash to what was stored")

    def _read(self, key: str) -> bytes | None:
        try:
            return b"".join(self.blobs.read(key))
        except BlobMissing:
            return None

    def _write_json(self, key: str, value: Reply) -> None:
        self.blobs.write(key, [value.model_dump_json(indent=1).encode() + b"\n"])

    def _refused(self, message: str) -> InvalidInput:
        hint = "choose another place, or empty this one if nothing in it is wanted"
        return InvalidInput([Fault(where="--checkpoint-to", message=message, hint=hint)])


def _manifest_key(step: int) -> str:
    return f"{CHECKPOINTS}{step:08d}.json"


def _cache_key(key: str) -> str:
    return f"{CACHES}{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk
