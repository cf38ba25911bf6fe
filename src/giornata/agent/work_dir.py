"""The directories of a node: one per process with one per attempt in it, and a cache for all."""

import fcntl
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from giornata.domain.errors import Fault, InvalidInput

PRIVATE = 0o700
RUN_PREFIX = "run-"
CACHE_DIRECTORY = "cache"
MODEL_DIRECTORY = "models"
KERNEL_DIRECTORY = "compiled"
KERNELS_BYTES = 4 * 2**30
"""More than this of compiled kernels and they are all thrown away at the next start of a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDir:
    """The directories of one attempt. The engine gets `work` and nothing else; all are on one file system."""

    inputs: Path
    work: Path
    outbox: Path
    cache: Path


class WorkDir:
    """Holds `directory/run-…`, locked for as long as this process lives. Beside it is what all processes share:
    inputs in `cache`, model files in `models`, and the engines' compiled kernels.

    The lock is the kernel's and ends with the process, however that ends; process numbers would not tell, since in
    a container each process may have the same one. What dead processes left is wiped here, at the start.
    """

    def __init__(self, directory: Path, *, kernels_bytes: int = KERNELS_BYTES) -> None:
        self._root = directory
        self.cache = directory / CACHE_DIRECTORY
        with _usable(directory):
            directory.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
            self.cache.mkdir(mode=PRIVATE, exist_ok=True)
            self.cache.chmod(PRIVATE)  # an earlier version left it open
            self._wipe_stale()
            self._bound_kernels(kernels_bytes)
            self._run = directory / f"{RUN_PREFIX}{secrets.token_hex(6)}"
            self._run.mkdir(mode=PRIVATE)
            self._lock = _locked(self._run)

    def _wipe_stale(self) -> None:
        for run in self._root.glob(f"{RUN_PREFIX}*"):
            with suppress(OSError):
                lock = _locked(run)
                if lock is not None:
                    shutil.rmtree(run, ignore_errors=True)
                    lock.close()

    def _bound_kernels(self, bound_bytes: int) -> None:
        """Make their directory, empty when it had grown over its bound; not while another process may use it."""
        kernels = self._root / KERNEL_DIRECTORY
        alone = not any(self._root.glob(f"{RUN_PREFIX}*"))
        if alone and sum(path.lstat().st_size for path in kernels.rglob("*") if path.is_file()) > bound_bytes:
            shutil.rmtree(kernels)
        kernels.mkdir(exist_ok=True)
        kernels.chmod(PRIVATE)  # code is loaded from it

    @contextmanager
    def job_dir(self, attempt_id: str) -> Iterator[JobDir]:
        """Make fresh directories for an attempt, and delete them afterwards. Raises InvalidInput when that fails."""
        home = self._run / attempt_id
        shutil.rmtree(home, ignore_errors=True)
        made = JobDir(inputs=home / "inputs", work=home / "work", outbox=home / "outbox", cache=home / "cache")
        try:
            with _usable(self._root):
                for each in (made.inputs, made.work, made.outbox, made.cache):
                    each.mkdir(parents=True)
            yield made
        finally:
            shutil.rmtree(home, ignore_errors=True)

    def close(self) -> None:
        """Delete everything that this process has left."""
        shutil.rmtree(self._run, ignore_errors=True)
        if self._lock is not None:
            self._lock.close()


@contextmanager
def _usable(directory: Path) -> Iterator[None]:
    """Turn what the disk refuses into a fault that names the setting."""
    try:
        yield
    except OSError as error:
        hint = "name a directory that can be written"
        raise InvalidInput([Fault(where=f"work_dir {directory}", message=str(error), hint=hint)]) from error


def _locked(run: Path) -> IO[bytes] | None:
    """Return the lock file of a run, locked; None when a living process holds the lock."""
    file = (run / "lock").open("wb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file
