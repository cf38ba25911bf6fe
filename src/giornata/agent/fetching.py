"""The inputs and the checkpoint that an attempt needs on disk before the engine starts."""

import errno
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

from giornata.agent.blob_cache import BlobCache
from giornata.agent.events import AttemptFailed
from giornata.agent.lease import LeaseCalls
from giornata.agent.transport import ObjectStorage
from giornata.agent.work_dir import JobDir
from giornata.client.node import NodeClient
from giornata.client.retry import Monotonic
from giornata.domain.errors import BlobMismatch, BlobMissing, GiornataError, LeaseLost, NotFound
from giornata.domain.reasons import Reason
from giornata.protocol.pictures import LeaseFile
from giornata.protocol.pipe import InputFile, ResumePoint
from giornata.protocol.uploads import Download
from giornata.protocol.work import AnyLease, LeaseCheckpoint, LeaseInput

log = logging.getLogger(__name__)

AT_ONCE = 6
# A link that is slower than this is of no use: a transfer that moves is waited for, but not for ever.
LEAST_BYTES_PER_S = 2**16
ROLES: tuple[str, ...] = get_args(InputFile.model_fields["role"].annotation)
DISK_ERRNOS = frozenset({errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO})
# The checkpoint itself is bad or not there; the one before may do.
BAD_BYTES = (BlobMismatch, BlobMissing, NotFound)


class Fetching:
    """Fetches and verifies inputs and a checkpoint. `check` is called all the while, and raises to end a fetch.

    All methods raise AttemptFailed with NODE_DOWNLOAD or NODE_DISK, or whatever `check` raises.
    """

    def __init__(
        self,
        *,
        node: NodeClient,
        calls: LeaseCalls,
        storage: ObjectStorage,
        cache: BlobCache,
        monotonic_s: Monotonic,
        patience_s: float,
        check: Callable[[], None],
    ) -> None:
        self._node, self._calls, self._storage, self._cache = node, calls, storage, cache
        self._monotonic_s, self._patience_s, self._check = monotonic_s, patience_s, check

    def inputs(self, listed: Sequence[LeaseInput | LeaseFile], job_dir: JobDir) -> tuple[InputFile, ...]:
        """Fetch the inputs, several at a time. Hashes name the files, since users' names may not be file names."""
        distinct = {each.download.sha256: each for each in listed}

        def place(item: LeaseInput | LeaseFile) -> None:
            self._check()
            target = job_dir.inputs / item.download.sha256
            with _named(item.name):
                self._cache.place(item.download, target, self._download)

        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="fetch") as pool:
            futures = [pool.submit(place, item) for item in distinct.values()]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return tuple(_input_file(each, job_dir.inputs / each.download.sha256) for each in listed)

    def resume_point(self, checkpoints: tuple[LeaseCheckpoint, ...], job_dir: JobDir) -> ResumePoint | None:
        """Fetch the newest checkpoint whose bytes arrive whole.

        The server is told of each that does not. The server may find it good for others; this attempt drops it.
        """
        for candidate in checkpoints:
            self._check()
            path = job_dir.inputs / f"checkpoint-{candidate.step}"
            try:
                with _named(f"checkpoint of step {candidate.step}", passing=BAD_BYTES):
                    self._download(candidate.download, path)
            except BAD_BYTES as error:
                self._reject(candidate.step, str(error))
            else:
                return ResumePoint(step=candidate.step, path=path)
        return None

    def _reject(self, step: int, message: str) -> None:
        log.warning("checkpoint of step %d rejected: %s", step, message)

        def reject(lease: AnyLease) -> None:
            self._check()
            self._node.reject_checkpoint(lease, step, message)

        try:
            self._calls.persist(reject)
        except LeaseLost:
            raise
        except GiornataError as error:
            # Refused for good: nothing that the job has to wait for.
            log.warning("checkpoint of step %d could not be rejected: %s", step, error)

    def cached(self, key: str, job_dir: JobDir) -> Path | None:
        """Fetch what the server holds under the key; None when it has nothing or cannot be asked."""
        try:
            download = self._calls.once(lambda lease: self._node.get_cache(lease, key)).download
            if download is None:
                return None
            path = job_dir.cache / download.sha256
            self._cache.place(download, path, self._download)
        except LeaseLost:
            raise
        except (GiornataError, OSError) as error:
            log.warning("cache %s: %s", key, error)
            return None
        return path

    def _download(self, what: Download, path: Path) -> None:
        until_s = self._monotonic_s() + self._patience_s
        longest_s = until_s + what.size_bytes / LEAST_BYTES_PER_S

        def progress(received_bytes: int) -> None:
            self._check()
            if self._monotonic_s() > longest_s:
                message = f"only {received_bytes} of {what.size_bytes} bytes have come in far too long a time"
                raise AttemptFailed(Reason.NODE_DOWNLOAD, message)

        def fetch(_: AnyLease) -> None:
            self._check()
            self._storage.download(what, path, progress=progress)

        self._calls.persist(fetch, until=lambda: until_s)


@contextmanager
def _named(what: str, *, passing: tuple[type[GiornataError], ...] = ()) -> Iterator[None]:
    """Turn errors into AttemptFailed that names what could not be fetched; those of `passing` go through."""
    try:
        yield
    except (GiornataError, OSError) as error:
        if isinstance(error, (LeaseLost, *passing)):
            raise
        disk = isinstance(error, OSError) and error.errno in DISK_ERRNOS
        reason = Reason.NODE_DISK if disk else Reason.NODE_DOWNLOAD
        raise AttemptFailed(reason, f"{what}: {type(error).__name__}: {error}") from error


def _input_file(item: LeaseInput | LeaseFile, path: Path) -> InputFile:
    said = {"role": item.role if item.role in ROLES else ROLES[0], "name": item.name}
    if isinstance(item, LeaseInput):
        said |= item.model_dump(include={"caption", "repeats", "resolution"})
    return InputFile.model_validate({**said, "path": path, "sha256": item.download.sha256})
