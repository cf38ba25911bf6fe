"""Write a backup of an embedded installation: one tar file, made while the server works.

    objects/KEY     the bytes of each object that a row of the database names
    keys/NAME       key files of the data folder, when they were asked for
    giornata.db     a copy of the database
    manifest.json   see `BackupManifest`; a file without it was cut off

The database is copied first and the objects after it: whatever a row names was stored before the row was committed.
Objects never change. An object that is gone was deleted after the copy, so the database is copied again.
"""

import hashlib
import io
import os
import tarfile
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from pydantic import BaseModel

from giornata import __version__
from giornata.blobs.object_names import checked_key
from giornata.cli.operate.composition import NODE_KEY_FILE, SECRETS_KEY_FILE
from giornata.cli.settings.connection import ADMIN_KEY_FILE
from giornata.cli.settings.private_files import new_private_file
from giornata.control.ports.clock import Clock
from giornata.domain.errors import Unavailable
from giornata.store.database.sqlite_copy import copy_sqlite
from giornata.store.stored_objects import SqliteSnapshot, StoredObject

FORMAT = 1
DATABASE, MANIFEST = "giornata.db", "manifest.json"
OBJECTS, KEYS = "objects/", "keys/"
KEY_FILES = (SECRETS_KEY_FILE, ADMIN_KEY_FILE, NODE_KEY_FILE)
MAX_COPIES = 10
PRIVATE_FILE = 0o600


class BackupManifest(BaseModel):
    """The last member of a backup. `damaged` has the keys whose bytes storage had not, or not as the rows say."""

    format: int
    giornata: str
    revision: str
    copied_at_ms: int
    objects: int
    size_bytes: int
    damaged: list[str]
    keys: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedInstallation:
    """The database, the folder of objects and the data folder of `giornata up`."""

    database: Path
    blobs: Path
    data: Path

    def object_path(self, key: str) -> Path:
        """Return the file of an object. Raises InvalidInput for a key that is not safe."""
        return self.blobs / "objects" / checked_key(key)


def write_backup(
    target: Path, installation: EmbeddedInstallation, *, with_keys: bool, clock: Clock
) -> BackupManifest:
    """Write the backup to the new file `target`, which is there whole or not at all, and only for its owner.

    Raises InvalidInput when the file exists or cannot be written, and Unavailable when the database cannot be read.
    """
    with (
        new_private_file(target) as file,
        tempfile.TemporaryDirectory(dir=target.parent, prefix=".giornata-") as folder,
        tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        archive = _Archive(tar=tar)
        snapshot, copied_at_ms = _with_objects(archive, installation, Path(folder), clock)
        keys = [name for name in KEY_FILES if with_keys and (installation.data / name).is_file()]
        for name in keys:
            archive.add_bytes(KEYS + name, (installation.data / name).read_bytes())
        with snapshot.path.open("rb") as database:
            archive.add(DATABASE, database)
        manifest = BackupManifest(
            format=FORMAT,
            giornata=__version__,
            revision=snapshot.revision() or "",
            copied_at_ms=copied_at_ms,
            objects=len(archive.copied),
            size_bytes=archive.size_bytes,
            damaged=sorted(archive.damaged),
            keys=keys,
        )
        archive.add_bytes(MANIFEST, manifest.model_dump_json(indent=2).encode())
    return manifest


def _with_objects(
    archive: "_Archive", installation: EmbeddedInstallation, folder: Path, clock: Clock
) -> tuple[SqliteSnapshot, int]:
    """Add the objects of a copy of the database, and return the copy and when it was made."""
    missing: set[str] = set()
    for number in range(MAX_COPIES):
        copied_at_ms, snapshot = clock.now_ms(), SqliteSnapshot(path=folder / f"{number}.db")
        copy_sqlite(installation.database, snapshot.path)
        missing_before, missing = missing, archive.add_objects(snapshot.objects(), installation)
        # Rows that a later copy still has: their objects were lost, and not deleted meanwhile.
        if missing == missing_before:
            archive.damaged |= missing
            return snapshot, copied_at_ms
        snapshot.path.unlink()
    raise Unavailable(f"objects were deleted during each of {MAX_COPIES} copies of the database")


@dataclass(slots=True, kw_only=True)
class _Archive:
    """A tar file that is being written. `copied` has the keys of the objects in it."""

    tar: tarfile.TarFile
    copied: set[str] = field(default_factory=set)
    damaged: set[str] = field(default_factory=set)
    size_bytes: int = 0

    def add_objects(self, objects: Iterable[StoredObject], installation: EmbeddedInstallation) -> set[str]:
        """Add the objects that are not in it yet, and return the keys of those that storage does not have."""
        missing = set()
        for each in objects:
            if each.key in self.copied:
                continue
            try:
                file = installation.object_path(each.key).open("rb")
            except FileNotFoundError:
                missing.add(each.key)
                continue
            with file:
                if self.add(OBJECTS + each.key, file) != (each.size_bytes, each.sha256):
                    self.damaged.add(each.key)
            self.copied.add(each.key)
        return missing

    def add(self, name: str, file: BinaryIO) -> tuple[int, str]:
        """Add a whole file, and return its size and hash."""
        member, hashed = tarfile.TarInfo(name), _HashedFile(file)
        member.mode, member.size = PRIVATE_FILE, os.fstat(file.fileno()).st_size
        self._add(member, hashed)
        return member.size, hashed.sha256.hexdigest()

    def add_bytes(self, name: str, content: bytes) -> None:
        """Add a file of these bytes."""
        member = tarfile.TarInfo(name)
        member.mode, member.size = PRIVATE_FILE, len(content)
        self._add(member, io.BytesIO(content))

    def _add(self, member: tarfile.TarInfo, file: "BinaryIO | _HashedFile") -> None:
        self.tar.addfile(member, file)  # type: ignore[arg-type]
        self.tar.members.clear()  # type: ignore[attr-defined]  # tarfile keeps what it has written, for listings
        self.size_bytes += member.size


class _HashedFile:
    """A file that is hashed while it is read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.sha256 = file, hashlib.sha256()

    def read(self, size_bytes: int) -> bytes:
        """Read and hash at most so many bytes."""
        chunk = self._file.read(size_bytes)
        self.sha256.update(chunk)
        return chunk
