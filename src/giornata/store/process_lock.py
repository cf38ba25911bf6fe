"""One server process per SQLite file."""

import fcntl
import os
from pathlib import Path

from giornata.domain.errors import Unavailable


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
