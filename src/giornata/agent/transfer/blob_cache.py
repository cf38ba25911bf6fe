"""A cache of inputs by content: the next job on the same pictures downloads nothing."""

import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from giornata.protocol.uploads import Download

RECOUNT_SHARE = 1 / 16


class BlobCache:
    """Keeps files named by their sha256, `max_bytes` at most. The least recently used files go first.

    Several processes may share the directory: files appear by rename, whole, and a user takes a hard link, which
    stays when the file is evicted. A process counts the bytes that it adds, and reads the directory again when the
    bound may be reached: reading it for each new file would take quadratic time. What other processes add is found
    at the latest when this one has added RECOUNT_SHARE of the bound.
    """

    def __init__(self, directory: Path, *, max_bytes: int, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._now_ns = now_ns
        self._counting = threading.Lock()
        self._free_bytes = 0  # that may be added before the directory is read again

    def place(self, what: Download, target: Path, fetch: Callable[[Download, Path], None]) -> None:
        """Put the bytes at `target`, with `fetch` unless an entry of the cache still hashes to its name.

        `fetch` puts verified bytes at the path that it is given, whole, or raises.
        """
        if what.size_bytes > self._max_bytes // 2:
            fetch(what, target)
            return
        entry = self._directory / what.sha256[:2] / what.sha256
        if not _intact(entry, what):
            # Fetched to where it is wanted, not into the cache: what a killed process leaves half-fetched in its own
            # directory is wiped with that, and in the cache nobody would know whose it is.
            fetch(what, target)
            self._keep(target, entry, what)
            return
        try:
            self._touch(entry)
            link_or_copy(entry, target)
        except FileNotFoundError:  # another process has evicted it meanwhile
            fetch(what, target)

    def _keep(self, fetched: Path, entry: Path, what: Download) -> None:
        """Make a file an entry, whole or not at all."""
        entry.parent.mkdir(parents=True, exist_ok=True)
        aside = fetched.with_name(f".{fetched.name}.entry")
        link_or_copy(fetched, aside)
        aside.replace(entry)
        aside.unlink(missing_ok=True)  # replacing a name by another of the same file leaves both
        with suppress(FileNotFoundError):
            self._touch(entry)
        with self._counting:
            self._free_bytes -= what.size_bytes
            if self._free_bytes < 0:
                self._free_bytes = min(self._trim(keep=entry), int(self._max_bytes * RECOUNT_SHARE))

    def _touch(self, entry: Path) -> None:
        now_ns = self._now_ns()  # finer than the file system's own clock
        os.utime(entry, ns=(now_ns, now_ns))

    def _trim(self, *, keep: Path) -> int:
        """Delete the least recently used entries if all together exceed the bound, and as many more as make room for
        RECOUNT_SHARE of it. Returns the bytes that are free afterwards."""
        found: list[tuple[float, int, Path]] = []
        for path in self._directory.glob("??/*"):
            with suppress(FileNotFoundError):
                status = path.stat()
                found.append((status.st_mtime, status.st_size, path))
        free_bytes = self._max_bytes - sum(size for _, size, _ in found)
        if free_bytes >= 0:
            return free_bytes
        for _, size_bytes, path in sorted(found):
            if free_bytes >= self._max_bytes * RECOUNT_SHARE:
                break
            if path != keep:
                path.unlink(missing_ok=True)
                free_bytes += size_bytes
        return max(0, free_bytes)


def _intact(entry: Path, what: Download) -> bool:
    """Return True when the file is there and holds what it should. A disk that forgot bits must not spoil a job."""
    try:
        if entry.stat().st_size == what.size_bytes and sha256_of(entry) == what.sha256:
            return True
    except FileNotFoundError:
        return False
    entry.unlink(missing_ok=True)
    return False


def link_or_copy(source: Path, target: Path) -> None:
    """Give the file a second name, or copy it where the file system has no hard links."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target)


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file as 64 hex digits. The file is read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
