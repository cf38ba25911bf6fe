"""Write files that are whole on disk, or not there: written aside, synced, renamed, and the folder synced too."""

import contextlib
import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedWriter
from pathlib import Path

from giornata.control.ports.blobs import Stored
from giornata.domain.errors import Fault, InvalidInput, TooLarge, Unavailable

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# A folder that is read-only, gone, another user's or on a disk that fails: for the operator to mend, not for tenants.
_AWAY = {
    errno.EACCES,
    errno.EIO,
    errno.ENODEV,
    errno.ENOENT,
    errno.ENOTCONN,
    errno.ENOTDIR,
    errno.ENXIO,
    errno.EPERM,
    errno.EROFS,
    errno.ESTALE,
}
# A folder may be pruned between making it and renaming into it.
_PUBLISH_TRIES = 10


@contextmanager
def away_is_unavailable(verb: str) -> Iterator[None]:
    """Turn what the operator has to mend into Unavailable: "storage cannot be written: read-only file system"."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise Unavailable("storage has no room left; free some disk space") from error
        if error.errno in _AWAY:
            reason = os.strerror(error.errno or 0).lower()
            public = f"storage cannot be {verb}: {reason}"
            raise Unavailable(f"{public}: {error.filename}; check the folder of --blobs", public=public) from error
        raise


@contextmanager
def written_aside(folder: Path) -> Iterator[BufferedWriter]:
    """Open a new file in `folder`, gone again at the end unless it was published.

    A disk that is full, read-only or gone is Unavailable.
    """
    path = folder / secrets.token_hex(16)
    try:
        with away_is_unavailable("written"), open(path, "xb", opener=_private) as file:
            yield file
    finally:
        with contextlib.suppress(OSError):  # what went wrong first is what matters
            path.unlink(missing_ok=True)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, stat.S_IRUSR | stat.S_IWUSR)


def pour(chunks: Iterable[bytes], file: BufferedWriter, *, most_bytes: int | None = None) -> Stored:
    """Write the chunks, hashing on the way. Raises TooLarge as soon as there are more than `most_bytes`."""
    hasher, size_bytes = hashlib.sha256(), 0
    for chunk in chunks:
        size_bytes += len(chunk)
        if most_bytes is not None and size_bytes > most_bytes:
            raise TooLarge(f"more than the {most_bytes} bytes that the URL was signed for")
        hasher.update(chunk)
        file.write(chunk)
    return Stored(size_bytes=size_bytes, sha256=hasher.hexdigest())


def publish(file: BufferedWriter, target: Path, *, root: Path) -> None:
    """Make the file visible as `target`, below `root`, replacing what was there; folders are made as needed.

    Raises InvalidInput when a piece of the path is a file, or when the target is a folder.
    """
    file.flush()
    os.fsync(file.fileno())
    for tries_left in reversed(range(_PUBLISH_TRIES)):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            Path(file.name).replace(target)
            break
        except (NotADirectoryError, IsADirectoryError, FileExistsError, FileNotFoundError):
            if _is_in_the_way(target, root):
                raise InvalidInput([_folder_fault(target, root)]) from None
            if not tries_left:
                raise
    _sync_folders(target.parent, root)


def publish_into(file: BufferedWriter, target: Path) -> None:
    """Make the file visible as `target` in a folder that must be there. Raises FileNotFoundError when it is not."""
    file.flush()
    os.fsync(file.fileno())
    Path(file.name).replace(target)
    _sync_folders(target.parent, target.parent)


def prune_empty(folder: Path, *, root: Path) -> None:
    """Remove `folder` and its parents below `root` for as long as they are empty."""
    with contextlib.suppress(OSError):
        while folder != root:
            folder.rmdir()
            folder = folder.parent


def _sync_folders(folder: Path, root: Path) -> None:
    """Sync `folder` and its parents up to and with `root`. One that is gone again has nothing to keep."""
    for path in (folder, *folder.parents):
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        if path == root:
            return


def _is_in_the_way(target: Path, root: Path) -> bool:
    folders = [folder for folder in target.parents if folder.is_relative_to(root)]
    return target.is_dir() or any(folder.is_file() for folder in folders)


def _folder_fault(target: Path, root: Path) -> Fault:
    key = target.relative_to(root).as_posix()
    return Fault(where="key", message=f"{key} is, or runs through, another key's folder", hint="use another key")
