"""Read a backup of an embedded installation into a new data folder, and verify every byte."""

import os
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from giornata.blobs.filesystem import FilesystemBlobs
from giornata.cli.maintenance.archive import DATABASE, FORMAT, KEY_FILES, KEYS, MANIFEST, OBJECTS, BackupManifest
from giornata.cli.settings.private_files import DATA, private_folder, write_private
from giornata.cli.system import SystemClock
from giornata.control.ports.blobs import Blobs, Stored
from giornata.domain.errors import Fault, InvalidInput
from giornata.store.database.migrate import knows_revision
from giornata.store.database.sqlite_copy import check_sqlite
from giornata.store.database.sqlite_file import ProcessLock
from giornata.store.stored_objects import SqliteSnapshot

CHUNK_BYTES = 2**20
MAX_FAULTS = 20
ASIDE = f"{DATABASE}.restoring"


def read_backup(source: Path, data: Path) -> BackupManifest:
    """Restore the backup into the data folder. The database comes last, so that a server starts on all or nothing.

    Raises InvalidInput for a folder that has a database, for a file that is no whole backup, and when bytes do not
    hash to what the database says.
    """
    private_folder(data, named="data", holds=DATA)
    if (data / DATABASE).exists():
        hint = "name a new folder with --data"
        raise InvalidInput([Fault(where="data", message=f"{data} has a database already", hint=hint)])
    lock = ProcessLock(data / DATABASE)
    aside = data / ASIDE
    try:
        # The key signs no URL: nobody but this process sees these objects before a server starts.
        blobs = FilesystemBlobs(data / "blobs", signing_key=os.urandom(32), base_url="", clock=SystemClock())
        found = _extract(source, blobs, aside)
        manifest = _checked_manifest(source, found.manifest)
        _verify(source, SqliteSnapshot(path=aside), found, manifest, blobs)
        for name, text in found.keys.items():
            write_private(data / name, text)
        aside.replace(data / DATABASE)
        _sync_folder(data)
        return manifest
    finally:
        aside.unlink(missing_ok=True)
        lock.release()


@dataclass(slots=True, kw_only=True)
class _Extracted:
    """The members of a backup. Objects lie in storage, and the database in its file aside."""

    objects: dict[str, Stored] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    manifest: bytes | None = None


def _extract(source: Path, blobs: Blobs, aside: Path) -> _Extracted:
    found = _Extracted()
    with _readable(source), tarfile.open(source, mode="r|") as tar:
        while (member := tar.next()) is not None:
            tar.members.clear()  # type: ignore[attr-defined]  # tarfile keeps what it has read, for listings
            file = tar.extractfile(member) if member.isfile() else None
            if file is None:
                raise _refused(source, f"{member.name} is not a file")
            _take(source, member.name, file, found, blobs, aside)
    return found


def _take(source: Path, name: str, file: IO[bytes], found: _Extracted, blobs: Blobs, aside: Path) -> None:
    """Put one member to its place. Raises InvalidInput for one that no backup has."""
    if name.startswith(OBJECTS):
        key = name.removeprefix(OBJECTS)
        found.objects[key] = blobs.write(key, _chunks(file))
    elif name.removeprefix(KEYS) in KEY_FILES:
        found.keys[name.removeprefix(KEYS)] = file.read().decode()
    elif name == DATABASE:
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as target:
            for chunk in _chunks(file):
                target.write(chunk)
            target.flush()
            os.fsync(target.fileno())
    elif name == MANIFEST:
        found.manifest = file.read()
    else:
        raise _refused(source, f"it holds {name!r}, which no backup has")


def _checked_manifest(source: Path, content: bytes | None) -> BackupManifest:
    if content is None:
        raise _refused(source, "it has no manifest: it was cut off, or is no backup")
    try:
        manifest = BackupManifest.model_validate_json(content)
    except ValidationError:
        raise _refused(source, "its manifest cannot be read") from None
    if manifest.format != FORMAT or not knows_revision(manifest.revision):
        message = f"Giornata {manifest.giornata} made it, with a database of revision {manifest.revision}"
        raise _refused(source, message, hint="restore it with that version or a later one")
    return manifest


def _verify(
    source: Path, snapshot: SqliteSnapshot, found: _Extracted, manifest: BackupManifest, blobs: Blobs
) -> None:
    """Compare every object with its row, and delete objects without a row. Raises InvalidInput with the faults."""
    if not snapshot.path.is_file():
        raise _refused(source, "it has no database")
    check_sqlite(snapshot.path)
    faults = list(_differences(snapshot, found.objects, known=frozenset(manifest.damaged)))
    if faults:
        more = len(faults) - MAX_FAULTS
        rest = [Fault(where=str(source), message=f"and {more} more objects")] if more > 0 else []
        raise InvalidInput([*faults[:MAX_FAULTS], *rest])
    named = {each.key for each in snapshot.objects()}
    for key in found.objects.keys() - named:  # the server deleted these while the backup was made
        blobs.delete(key)


def _differences(
    snapshot: SqliteSnapshot, objects: Mapping[str, Stored], *, known: frozenset[str]
) -> Iterator[Fault]:
    for each in snapshot.objects():
        stored = objects.get(each.key)
        if each.key in known or stored == Stored(size_bytes=each.size_bytes, sha256=each.sha256):
            continue
        is_found = "is not there" if stored is None else f"has {stored.size_bytes} bytes that hash to {stored.sha256}"
        expected = f"expected {each.size_bytes} bytes that hash to {each.sha256}"
        yield Fault(where=each.key, message=f"{is_found}; {expected}", hint="restore another copy of the backup")


@contextmanager
def _readable(source: Path) -> Iterator[None]:
    try:
        yield
    except tarfile.TarError as error:
        raise _refused(source, f"it is cut off, or is no backup: {error}") from None
    except FileNotFoundError:
        raise _refused(source, "there is no such file") from None


def _refused(source: Path, message: str, *, hint: str = "") -> InvalidInput:
    return InvalidInput([Fault(where=str(source), message=message, hint=hint)])


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(CHUNK_BYTES):
        yield chunk


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
