"""The inputs and the checkpoint that an attempt needs on disk before the engine starts."""

import errno
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar, get_args

from giornata.agent.attempt.events import AttemptFailed
from giornata.agent.attempt.lease import LeaseCalls
from giornata.agent.transfer.blob_cache import BlobCache
from giornata.agent.transfer.model_store import HeldFile, ModelStore
from giornata.agent.transfer.transport import ObjectStorage, Progress
from giornata.agent.work_dir import JobDir
from giornata.client.node import NodeClient
from giornata.client.retry import Monotonic
from giornata.domain.errors import BlobMismatch, BlobMissing, GiornataError, LeaseLost, NotFound
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.pictures import ANNOTATION_ROLE, LeaseFile
from giornata.protocol.node.pipe import InputFile, ResumePoint
from giornata.protocol.node.work import AnyLease, LeaseCheckpoint, LeaseInput
from giornata.protocol.uploads import Download

log = logging.getLogger(__name__)

F = TypeVar("F", LeaseInput, LeaseFile)

AT_ONCE = 6
# A link that is slower than this is of no use: a transfer that moves is waited for, but not for ever.
LEAST_BYTES_PER_S = 2**16
ROLES: tuple[str, ...] = get_args(InputFile.model_fields["role"].annotation)
PICTURE_ROLE = "picture"
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
        models: ModelStore,
        monotonic_s: Monotonic,
        patience_s: float,
        check: Callable[[], None],
    ) -> None:
        self._node, self._calls, self._storage, self._cache = node, calls, storage, cache
        self._models = models
        self._monotonic_s, self._patience_s, self._check = monotonic_s, patience_s, check

    def inputs(self, listed: Sequence[LeaseInput], job_dir: JobDir) -> tuple[InputFile, ...]:
        """Fetch the inputs of a job, several at a time."""
        return self._fetched(listed, lambda item: self._placed(item, job_dir))

    def files(self, listed: Sequence[LeaseFile], job_dir: JobDir, *, in_use: ExitStack) -> tuple[InputFile, ...]:
        """Fetch the files that pictures are drawn with, several at a time.

        Models are files of the machine's store, which keeps them until `in_use` is closed. An annotation that cannot
        be fetched is left out: the engine makes it again.
        """

        def fetch(item: LeaseFile) -> Path | None:
            if item.role == ANNOTATION_ROLE:
                return self._placed_or_none(item, job_dir)
            if item.role == PICTURE_ROLE:
                return self._placed(item, job_dir)
            model = self.model(item.name, item.download)
            in_use.callback(model.close)
            return model.path

        return self._fetched(listed, fetch)

    def _fetched(self, listed: Sequence[F], fetch: Callable[[F], Path | None]) -> tuple[InputFile, ...]:
        """Fetch each distinct file once; leave out those for which `fetch` returns None."""
        # Of equal files that a lease may do without and cannot do without, the latter is fetched.
        ordered = sorted(listed, key=lambda each: isinstance(each, LeaseInput) or each.role != ANNOTATION_ROLE)
        distinct = {each.download.sha256: each for each in ordered}
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="fetch") as pool:
            futures = {sha256: pool.submit(fetch, item) for sha256, item in distinct.items()}
            try:
                paths = {sha256: future.result() for sha256, future in futures.items()}
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        found = ((each, paths[each.download.sha256]) for each in listed)
        return tuple(_input_file(each, path) for each, path in found if path is not None)

    def _placed(self, item: LeaseInput | LeaseFile, job_dir: JobDir) -> Path:
        """Put a file into the attempt's directory. A hash names it, since users' names may not be file names."""
        self._check()
        target = job_dir.inputs / item.download.sha256
        with _named(item.name):
            self._cache.place(item.download, target, self._download)
        return target

    def _placed_or_none(self, item: LeaseFile, job_dir: JobDir) -> Path | None:
        try:
            return self._placed(item, job_dir)
        except AttemptFailed as error:
            log.warning("an annotation is made again: %s", error)
            return None

    def model(self, name: str, what: Download) -> HeldFile:
        """Return a model file of the machine's store, fetched if need be. The caller closes it when the engine has
        no more use for it."""
        with _named(name):
            return self._models.hold(what, self._download_model, check=self._check)

    def _download_model(self, what: Download, part: Path, target: Path, _: Progress) -> None:
        self._download(what, target, part=part)

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

    def _download(self, what: Download, path: Path, *, part: Path | None = None) -> None:
        until_s = self._monotonic_s() + self._patience_s
        longest_s = until_s + what.size_bytes / LEAST_BYTES_PER_S

        def progress(received_bytes: int) -> None:
            self._check()
            if self._monotonic_s() > longest_s:
                message = f"only {received_bytes} of {what.size_bytes} bytes have come in far too long a time"
                raise AttemptFailed(Reason.NODE_DOWNLOAD, message)

        def fetch(_: AnyLease) -> None:
            self._check()
            self._storage.download(what, path, progress=progress, part=part)

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
