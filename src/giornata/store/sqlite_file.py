"""The files of a SQLite database: nobody but the user of the server may open them."""

import os
import stat
from pathlib import Path

from giornata.domain.errors import Fault, InvalidInput

OTHERS = stat.S_IRWXG | stat.S_IRWXO
# SQLite gives the files that it makes beside the database the mode of the database.
BESIDE = ("", "-wal", "-shm", "-journal", ".lock")


def private_database(path: Path) -> None:
    """Make an empty database of mode 0600 where there is none, and take the rights of others from existing files.

    Raises InvalidInput for what cannot be written, for a file of another user that is open to others, and for a
    folder to which others may write.
    """
    try:
        path.parent.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
        _check_folder(path.parent)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, stat.S_IRUSR | stat.S_IWUSR))
    except OSError as error:
        message = f"cannot open {path}: {error.strerror}"
        raise InvalidInput([Fault(where="database", message=message, hint="name a file to write to")]) from None
    for file in (path.with_name(path.name + suffix) for suffix in BESIDE):
        try:
            status = file.stat()
        except FileNotFoundError:
            continue
        if not status.st_mode & OTHERS:
            continue
        if status.st_uid != os.geteuid():
            raise InvalidInput([_fault(file, status, "expected mode 0600", f"chmod 600 {file}")])
        file.chmod(stat.S_IRUSR | stat.S_IWUSR)


def _check_folder(folder: Path) -> None:
    """Whoever may write to the folder could put another database into the place of this one."""
    status = folder.stat()
    others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if others_write and not status.st_mode & stat.S_ISVTX:
        raise InvalidInput([_fault(folder, status, "others may write to it", f"chmod 700 {folder}")])


def _fault(path: Path, status: os.stat_result, expected: str, command: str) -> Fault:
    mode = f"{stat.S_IMODE(status.st_mode):04o}"
    message = f"{path} has mode {mode} and belongs to user {status.st_uid}; {expected}"
    return Fault(where="database", message=message, hint=f"run {command} as that user, or name another file")
