"""Guard the SQLite file: who may open it, and whose turn it is to write."""

import fcntl
import os
import stat
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from giornata.domain.errors import Fault, InvalidInput, Unavailable

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
    """Refuse a folder that others may write to: they could put another database into the place of this one."""
    status = folder.stat()
    others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if others_write and not status.st_mode & stat.S_ISVTX:
        raise InvalidInput([_fault(folder, status, "others may write to it", f"chmod 700 {folder}")])


def _fault(path: Path, status: os.stat_result, expected: str, command: str) -> Fault:
    mode = f"{stat.S_IMODE(status.st_mode):04o}"
    message = f"{path} has mode {mode} and belongs to user {status.st_uid}; {expected}"
    return Fault(where="database", message=message, hint=f"run {command} as that user, or name another file")


class FairLock:
    """A lock that serves those who wait in order: first come, first served.

    SQLite lets writers race for its lock, and at 16 writers the unlucky one waits for seconds
    (docs/benchmark-log.md); `threading.Lock` promises no order either.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._turns: deque[threading.Lock] = deque()
        self._owner: int | None = None  # thread id; 0 while the lock is handed from one to the next

    @contextmanager
    def held(self, *, timeout_s: float) -> Iterator[None]:
        """Hold the lock. Raises Unavailable when it was not ours within `timeout_s`."""
        self._acquire(timeout_s)
        try:
            yield
        finally:
            self._release()

    @property
    def waiting(self) -> int:
        """The number of threads that stand in the queue."""
        with self._guard:
            return len(self._turns)

    def _acquire(self, timeout_s: float) -> None:
        me = threading.get_ident()
        with self._guard:
            if self._owner is None:
                self._owner = me
                return
            if self._owner == me:
                raise RuntimeError("a write transaction inside a write transaction")
            turn = threading.Lock()
            turn.acquire()
            self._turns.append(turn)
        if not turn.acquire(timeout=timeout_s) and not self._handed_over_late(turn):
            raise Unavailable(f"no write could begin within {timeout_s:g} s: too many are waiting")
        self._owner = me

    def _handed_over_late(self, turn: threading.Lock) -> bool:
        """Leave the queue; True when our turn came between the time-out and now."""
        with self._guard:
            if turn in self._turns:
                self._turns.remove(turn)
                return False
            return True

    def _release(self) -> None:
        with self._guard:
            if self._turns:
                self._owner = 0
                self._turns.popleft().release()
            else:
                self._owner = None


class ProcessLock:
    """An advisory lock on a file beside the database. The kernel drops it when the process dies, however it dies."""

    def __init__(self, database: Path) -> None:
        self._path = database.with_name(database.name + ".lock")
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._descriptor, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(self._descriptor)
            raise Unavailable(
                f"{database} is in use by another server (process {holder})",
                hint="Stop that server first, or give this one another --data. Several servers need PostgreSQL.",
            ) from None
        os.truncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let another server open the file. May be repeated."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
