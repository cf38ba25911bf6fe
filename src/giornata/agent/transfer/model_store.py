"""The model files of a machine, by content: few, large, shared by all processes of the machine.

    SHA256                  a whole, verified file
    .parts/SHA256.SIZE      a file on its way; its whole SIZE counts as used from the start
    .locks/SHA256           locked by the one that fetches the file
    .space                  locked while space is counted and made

Locks are the kernel's and end with the process, so that a dead process holds nothing. What a dead process had fetched
of a file is taken up by the next one. `BlobCache` keeps the many small inputs of training.
"""

import errno
import fcntl
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from giornata.agent.transfer.blob_cache import sha256_of
from giornata.protocol.uploads import Download

LOOK_EVERY_S = 0.2
PARTS, LOCKS, SPACE = ".parts", ".locks", ".space"

Progress = Callable[[int], None]
"""Called with the bytes that have arrived so far; what it raises ends the transfer."""

FetchModel = Callable[[Download, Path, Path, Progress], None]
"""(what, part, target, progress): goes on behind the bytes in `part`, and puts verified bytes at `target`, whole."""


def _no_check() -> None: ...


class HeldFile:
    """A file of the store that no process evicts before `close`."""

    def __init__(self, path: Path, sha256: str, file: IO[bytes]) -> None:
        self.path, self.sha256, self._file = path, sha256, file

    def close(self) -> None:
        """Let the store evict the file from now on."""
        if not self._file.closed:
            with suppress(OSError):
                os.utime(self._file.fileno())
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredFile:
    """A file or a part that takes space: `reserved_bytes` of it, of which `written_bytes` are on disk."""

    path: Path
    sha256: str
    reserved_bytes: int
    written_bytes: int
    used_ns: int

    @property
    def is_part(self) -> bool:
        return self.path.parent.name == PARTS


class ModelStore:
    """Keeps model files below `directory`, `max_bytes` at most. The least recently used files go first.

    All methods may be called from any thread, and by several processes on one directory.
    """

    def __init__(
        self,
        directory: Path,
        *,
        max_bytes: int,
        free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._directory, self._max_bytes = directory, max_bytes
        self._free_bytes, self._wait = free_bytes, wait
        self._foreground = threading.Condition()
        self._foreground_fetches = 0
        self._found_damaged: set[str] = set()
        self._suspects: set[str] = set()

    def hold(self, what: Download, fetch: FetchModel, *, check: Callable[[], None] = _no_check) -> HeldFile:
        """Return the file, fetched unless it is here, and in use until it is closed.

        One caller of the machine fetches a file; the others wait for it. `check` is called all the while, and raises
        to end the call. Raises what `fetch` raises, and OSError (ENOSPC) when there is no room.
        """
        with self._held_or_locked(what, check) as held:
            if held is not None:
                return held
            with self._in_foreground():
                self._fetch(what, fetch, lambda _: check())
            return self._entry_of(what)

    def prefetch(self, what: Download, fetch: FetchModel, *, check: Callable[[], None] = _no_check) -> None:
        """Fetch a file that may be needed soon. The transfer pauses while `hold` fetches another file.

        Room is made as for `hold`, never from files in use. Does nothing when the file is here, or on its way.
        """

        def give_way(_: int) -> None:
            check()
            with self._foreground:
                while self._foreground_fetches:
                    self._foreground.wait(LOOK_EVERY_S)
                    check()

        with self._locked(what.sha256) as mine:
            held = self._open_entry(what) if mine else None
            if mine and held is None:
                self._fetch(what, fetch, give_way)
            elif held is not None:
                held.close()

    def held(self) -> tuple[str, ...]:
        """Return the sha256 of each file that is here whole, most recently used first."""
        if not self._directory.is_dir():
            return ()
        whole = sorted((each for each in self._kept() if not each.is_part), key=lambda each: -each.used_ns)
        return tuple(each.sha256 for each in whole)

    def discard_if_damaged(self, sha256: str) -> bool:
        """Read the file again, and remove it when its bytes have changed; True when it was removed.

        Called when a file could not be loaded. A user that holds the file keeps the removed one open.
        """
        entry = self._directory / sha256
        try:
            damaged = sha256_of(entry) != sha256
        except OSError as error:
            damaged = error.errno != errno.ENOENT
        if damaged:
            entry.unlink(missing_ok=True)
            self._found_damaged.add(sha256)
        return damaged

    def suspect(self, sha256s: Iterable[str]) -> None:
        """Have each of these files read again, and removed if its bytes have changed, before its next use."""
        self._suspects.update(sha256s)

    def damaged(self) -> tuple[str, ...]:
        """Return the sha256 of each file that this process removed because its bytes had changed."""
        return tuple(sorted(self._found_damaged))

    def forget_damaged(self, sha256s: Iterable[str]) -> None:
        """Leave these out of `damaged` from now on."""
        self._found_damaged.difference_update(sha256s)

    # ---- one file

    @contextmanager
    def _held_or_locked(self, what: Download, check: Callable[[], None]) -> Iterator[HeldFile | None]:
        """Yield the file when it is here; None when it is the caller's to fetch, for which it then has the lock."""
        while True:
            check()
            if (held := self._open_entry(what)) is not None:
                yield held
                return
            with self._locked(what.sha256) as mine:
                if mine:
                    yield self._open_entry(what)  # it may have arrived before the lock was had
                    return
            self._wait(LOOK_EVERY_S)

    def _fetch(self, what: Download, fetch: FetchModel, progress: Progress) -> None:
        part = self._directory / PARTS / f"{what.sha256}.{what.size_bytes}"
        self._reserve(what, part)
        try:
            fetch(what, part, self._directory / what.sha256, progress)
        finally:
            if part.exists() and not part.stat().st_size:
                part.unlink(missing_ok=True)  # nothing has come: nothing to take up

    def _entry_of(self, what: Download) -> HeldFile:
        held = self._open_entry(what)
        if held is None:
            raise OSError(errno.EIO, f"the fetched file {what.sha256} is not on the disk")
        return held

    def _open_entry(self, what: Download) -> HeldFile | None:
        """Return the file, marked as in use; None when it is not here in its size."""
        path = self._directory / what.sha256
        if what.sha256 in self._suspects:
            self.discard_if_damaged(what.sha256)
            self._suspects.discard(what.sha256)
        while True:
            try:
                file = path.open("rb")
            except FileNotFoundError:
                return None
            fcntl.flock(file, fcntl.LOCK_SH)  # an evictor holds the other lock for a moment only
            if not _is_still(path, file):
                file.close()
                continue
            if os.fstat(file.fileno()).st_size != what.size_bytes:
                path.unlink(missing_ok=True)
                file.close()
                return None
            os.utime(file.fileno())
            return HeldFile(path, what.sha256, file)

    @contextmanager
    def _locked(self, sha256: str) -> Iterator[bool]:
        """Yield True when this caller alone may fetch or remove the file; False when another does."""
        for each in (self._directory, self._directory / PARTS, self._directory / LOCKS):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self._directory / LOCKS / sha256).open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    @contextmanager
    def _in_foreground(self) -> Iterator[None]:
        with self._foreground:
            self._foreground_fetches += 1
        try:
            yield
        finally:
            with self._foreground:
                self._foreground_fetches -= 1
                self._foreground.notify_all()

    # ---- space

    def _reserve(self, what: Download, part: Path) -> None:
        """Make the part, for which there is room then. The caller has the lock of the file."""
        if what.size_bytes > self._max_bytes:
            message = f"the file has {what.size_bytes} bytes, and this node keeps {self._max_bytes} bytes of models"
            raise OSError(errno.ENOSPC, message)
        with (self._directory / SPACE).open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            kept = [each for each in self._kept() if each.sha256 != what.sha256]
            mine_bytes = part.stat().st_size if part.exists() else 0
            for old in (self._directory / PARTS).glob(f"{what.sha256}.*"):
                if old != part:
                    old.unlink(missing_ok=True)  # of another size: one of the two sizes was a lie
            self._evict_for(kept, what.size_bytes, what.size_bytes - mine_bytes)
            part.touch()

    def _evict_for(self, kept: Sequence[_StoredFile], needed_bytes: int, unwritten_bytes: int) -> None:
        """Remove what was used longest ago until the bytes fit the bound and the disk. Raises OSError."""
        left_bytes = self._max_bytes - sum(each.reserved_bytes for each in kept) - needed_bytes
        promised_bytes = sum(each.reserved_bytes - each.written_bytes for each in kept)
        disk_bytes = self._free_bytes(self._directory) - promised_bytes - unwritten_bytes
        for each in sorted(kept, key=lambda each: each.used_ns):
            if left_bytes >= 0 and disk_bytes >= 0:
                return
            if self._remove(each):
                left_bytes += each.reserved_bytes
                disk_bytes += each.reserved_bytes
        if left_bytes < 0 or disk_bytes < 0:
            short_bytes = -min(left_bytes, disk_bytes)
            raise OSError(errno.ENOSPC, f"{short_bytes} bytes are short, and all other model files are in use")

    def _remove(self, kept: _StoredFile) -> bool:
        """Remove a file that nobody uses or a part that nobody fetches; False when somebody does."""
        if kept.is_part:
            with self._locked(kept.sha256) as mine:
                if mine:
                    kept.path.unlink(missing_ok=True)
                return mine
        try:
            with kept.path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                kept.path.unlink(missing_ok=True)
        except BlockingIOError:
            return False
        except FileNotFoundError:
            pass
        return True

    def _kept(self) -> list[_StoredFile]:
        found = []
        for path in (*self._directory.glob("[!.]*"), *(self._directory / PARTS).glob("*")):
            with suppress(FileNotFoundError):
                status = path.stat()
                sha256, _, size = path.name.partition(".")
                found.append(
                    _StoredFile(
                        path=path,
                        sha256=sha256,
                        reserved_bytes=int(size) if size else status.st_size,
                        written_bytes=status.st_size,
                        used_ns=status.st_mtime_ns,
                    )
                )
        return found


def _is_still(path: Path, file: IO[bytes]) -> bool:
    """Return True when the path names the file that was opened."""
    try:
        there, opened = path.stat(), os.fstat(file.fileno())
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (opened.st_dev, opened.st_ino)
