"""Folders that only the user of this process may read."""

import logging
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO, TextIO

from giornata.domain.errors import Fault, InvalidInput, Unavailable

log = logging.getLogger("giornata.rights")

OTHERS = stat.S_IRWXG | stat.S_IRWXO
PRIVATE = stat.S_IRWXU

# Names of what an installation, a node and a folder of blobs write. A folder that holds anything else may be a home
# folder or a part of the system: the rights of such a folder are never changed.
DATA = (
    *("*.key", "*.key.new", "*.log", "*.toml", "giornata.db*", "server.json", "server.json.new", "machine-id"),
    *("blobs", "logs", "node", "nodes", "standalone"),
)
BLOBS = ("objects", "aside", "uploads")
NODE = ("cache", "compiled", "run-*")


def keep_private() -> int:
    """Make this process and its children create files that only their owner may read.

    Returns the umask that the process had before.
    """
    return os.umask(OTHERS)


def private_folder(folder: Path, *, named: str, holds: Iterable[str]) -> Path:
    """Make the folder with mode 0700, or see that an existing folder is closed to other users and writable.

    A folder of this user's own that is empty, or that holds only names of `holds`, is closed and a warning says so.
    Raises InvalidInput that names the setting for every other folder that is open to other users.
    """
    try:
        folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        status = folder.stat()
        if status.st_mode & OTHERS:
            _close(folder, status, named=named, holds=tuple(holds))
    except OSError as error:
        message = f"cannot make {folder}: {error.strerror}"
        raise InvalidInput([Fault(where=named, message=message, hint="choose another directory")]) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        message = f"{folder} is not writable"
        raise InvalidInput([Fault(where=named, message=message, hint="choose another directory")])
    return folder


def _close(folder: Path, status: os.stat_result, *, named: str, holds: tuple[str, ...]) -> None:
    mode = f"{stat.S_IMODE(status.st_mode):04o}"
    if status.st_uid != os.geteuid():
        hint = f"run chown {os.geteuid()} {folder} && chmod 700 {folder}, or name a new folder inside it"
        raise InvalidInput([_open_fault(folder, mode, f"belongs to user {status.st_uid}", named, hint)])
    names = sorted(each.name for each in folder.iterdir())
    strange = next((name for name in names if not any(fnmatchcase(name, each) for each in holds)), None)
    if strange is not None or status.st_mode & stat.S_ISVTX:
        why = "is shared by all users" if strange is None else f"holds {strange}, which is not Giornata's"
        hint = f"run chmod 700 {folder} if nobody else needs it, or name a new folder"
        raise InvalidInput([_open_fault(folder, mode, why, named, hint)])
    folder.chmod(PRIVATE)
    if folder.stat().st_mode & OTHERS:
        hint = "mount it with umask=077, or name a folder on another file system"
        raise InvalidInput([_open_fault(folder, mode, "lies on a file system that keeps no rights", named, hint)])
    log.warning(
        "%s was open to other users (mode %s) and has mode 0700 now; whoever read it may know the keys in it: "
        "docs/how-to/operating.md says how to replace them",
        folder,
        mode,
    )


def _open_fault(folder: Path, mode: str, why: str, named: str, hint: str) -> Fault:
    expected = f"expected mode 0700 and user {os.geteuid()}, or other users could read it"
    message = f"{folder} has mode {mode} and {why}; {expected}"
    return Fault(where=named, message=message, hint=hint)


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read, whole or not at all."""
    with private_file(path) as file:
        file.write(text)


@contextmanager
def private_file(path: Path) -> Iterator[TextIO]:
    """Open a new file that only its owner may read. It takes its place at the end of the block, or not at all."""
    aside = path.with_suffix(path.suffix + ".new")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        os.fchmod(descriptor, 0o600)  # a file that was there kept its mode
        yield file
    aside.replace(path)


@contextmanager
def new_private_file(target: Path) -> Iterator[BinaryIO]:
    """Open a file beside the target that takes its name at the end, unless something goes wrong before.

    Only its owner may read it. Raises InvalidInput when the target exists or cannot be written, and Unavailable.
    """
    aside = target.with_name(target.name + ".new")
    if target.exists():
        raise InvalidInput([Fault(where="FILE", message=f"{target} exists", hint="name a new file")])
    try:
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, stat.S_IRUSR | stat.S_IWUSR)
    except OSError as error:
        message = f"cannot write {aside}: {error.strerror}"
        raise InvalidInput([Fault(where="FILE", message=message, hint="name a file in another folder")]) from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        aside.replace(target)
    except OSError as error:
        raise Unavailable(f"the file cannot be written: {error}") from error
    finally:
        with suppress(OSError):  # what went wrong first is what matters
            aside.unlink(missing_ok=True)
