"""Uploads of what the engine has made: in order, each file uploaded and then committed."""

import contextlib
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from giornata.agent.attempt.events import Event, Undelivered
from giornata.agent.attempt.lease import LeaseCalls
from giornata.agent.transfer.blob_cache import sha256_of
from giornata.agent.transfer.transport import ObjectStorage
from giornata.client.node import NodeClient
from giornata.client.retry import Monotonic, QueuedTask, TaskQueue
from giornata.domain.errors import BlobMismatch, BlobMissing, Forbidden, GiornataError, LeaseLost
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.pipe import ArtifactWritten, CachePut, CheckpointWritten, Notice
from giornata.protocol.node.work import AnyLease, CommitArtifact, CommitCache, CommitCheckpoint, NoticeReport
from giornata.protocol.uploads import FileToUpload, RenewParts, UploadRequest, UploadTicket

log = logging.getLogger(__name__)

# Bytes that arrive spoiled, or an upload that storage has forgotten: a new upload may do.
TRIES = 3
CHECKPOINT = "checkpoint"

FileMessage = CheckpointWritten | ArtifactWritten | CachePut


@dataclass(frozen=True, slots=True, kw_only=True)
class _Uploaded:
    """The part of a commit that describes the bytes."""

    sha256: str
    size_bytes: int
    upload_id: str | None
    etags: tuple[str, ...]


class _Superseded(Exception):
    """A newer checkpoint waits: another try at this one would only delay it."""


class AttemptUploader:
    """Delivers files and notices in order. Of the checkpoints that wait only the newest is delivered.

    `deliver_points` sends the metrics of every step so far. It is called before a checkpoint is committed: the steps
    before a committed checkpoint are never done again, so a point that is lost then is lost for good.
    """

    def __init__(
        self,
        *,
        node: NodeClient,
        calls: LeaseCalls,
        storage: ObjectStorage,
        post: Callable[[Event], None],
        monotonic_s: Monotonic,
        patience_s: float,
        deliver_points: Callable[[], None],
    ) -> None:
        self._node, self._calls, self._storage, self._post = node, calls, storage, post
        self._deliver_points = deliver_points
        self._monotonic_s, self._patience_s = monotonic_s, patience_s
        self._numbers = itertools.count()
        self._queue = TaskQueue("uploads")
        self.start, self.stop, self.is_idle = self._queue.start, self._queue.stop, self._queue.is_idle

    def file(self, message: FileMessage, path: Path) -> None:
        """Queue a file. Never blocks. The uploader removes the file in the end."""
        self._put(
            _describe(message),
            lambda: self._deliver(message, path),
            needed=isinstance(message, ArtifactWritten),
            path=path,
            replaces=CHECKPOINT if isinstance(message, CheckpointWritten) else "",
        )

    def notice(self, message: Notice) -> None:
        """Queue a notice: there is no file, but the notice must not get lost either. Its id makes two deliveries
        one."""
        notice_id = f"notice-{next(self._numbers):06d}"

        def deliver() -> None:
            report = NoticeReport(notice_id=notice_id, name=message.name, data=message.data)
            self._calls.persist(lambda lease: self._node.notice(lease, report))

        self._put(f"notice {message.name}", deliver, needed=False)

    def _put(
        self, what: str, run: Callable[[], None], *, needed: bool, path: Path | None = None, replaces: str = ""
    ) -> None:
        def ended(error: Exception | None) -> None:
            if isinstance(error, LeaseLost | _Superseded):
                log.info("%s is not delivered: %s", what, error)
            elif error is not None:
                log.warning("%s could not be delivered: %s", what, error)
                message = f"{what} could not be delivered: {type(error).__name__}: {error}"
                self._post(Undelivered(needed=needed, reason=reason_of_delivery(error), message=message))

        self._queue.put(QueuedTask(what=what, run=run, ended=ended, path=path, replaces=replaces))

    # ---- the queue's thread ----

    def _deliver(self, message: FileMessage, path: Path) -> None:
        until_s = self._monotonic_s() + self._patience_s
        wanted = FileToUpload(sha256=sha256_of(path), size_bytes=path.stat().st_size)
        for left in reversed(range(TRIES)):
            with contextlib.suppress(*((BlobMismatch, BlobMissing) if left else ())):
                self._upload_and_commit(message, path, wanted, until_s)
                return

    def _upload_and_commit(self, message: FileMessage, path: Path, wanted: FileToUpload, until_s: float) -> None:
        uploaded = self._calls.persist(lambda _: self._upload(message, path, wanted), until=lambda: until_s)
        self._calls.persist(lambda lease: self._commit(lease, message, uploaded))

    def _upload(self, message: FileMessage, path: Path, wanted: FileToUpload) -> _Uploaded:
        """Upload one file with its own ticket, and check at each piece that the upload still makes sense."""
        if isinstance(message, CheckpointWritten) and self._queue.will_replace(CHECKPOINT):
            raise _Superseded("a newer checkpoint waits")
        ticket = self._calls.once(lambda lease: self._ticket(lease, wanted))
        etags: tuple[str, ...] = ()
        if not ticket.exists:
            etags = self._storage.upload(
                path,
                ticket,
                renew=lambda numbers: self._renew(ticket, numbers),
                progress=lambda _: self._check(),
            )
        return _Uploaded(sha256=wanted.sha256, size_bytes=wanted.size_bytes, upload_id=ticket.upload_id, etags=etags)

    def _ticket(self, lease: AnyLease, wanted: FileToUpload) -> UploadTicket:
        return self._node.request_uploads(lease, UploadRequest(files=(wanted,))).items[0]

    def _renew(self, ticket: UploadTicket, numbers: list[int]) -> UploadTicket:
        parts = RenewParts(numbers=tuple(numbers))
        return self._calls.once(lambda lease: self._node.renew_upload(lease, ticket.upload_id or "", parts))

    def _check(self) -> None:
        self._calls.held.check()
        if self._queue.is_stopped:
            raise LeaseLost("the attempt has ended")

    def _commit(self, lease: AnyLease, message: FileMessage, done: _Uploaded) -> None:
        said = {
            "sha256": done.sha256,
            "size_bytes": done.size_bytes,
            "upload_id": done.upload_id,
            "etags": done.etags,
        }
        match message:
            case CheckpointWritten():
                self._deliver_points()
                self._node.commit_checkpoint(lease, CommitCheckpoint(step=message.step, **said))
            case ArtifactWritten():
                commit = CommitArtifact(name=message.name, media_type=message.media_type, **said)
                self._node.commit_artifact(lease, commit)
            case CachePut():
                self._node.commit_cache(lease, message.key, CommitCache(**said))


def _describe(message: FileMessage) -> str:
    match message:
        case CheckpointWritten():
            return f"checkpoint of step {message.step}"
        case ArtifactWritten():
            return f"artifact {message.name}"
        case CachePut():
            return f"cache entry {message.key}"


def reason_of_delivery(error: Exception) -> Reason:
    """Return the reason of a failed delivery. A file that breaks the protocol is the workload's fault."""
    if isinstance(error, ValidationError | FileNotFoundError):
        return Reason.CRASHED
    if isinstance(error, OSError):
        return Reason.NODE_DISK
    retryable = isinstance(error, GiornataError) and error.retryable
    between = isinstance(error, BlobMismatch | BlobMissing | Forbidden)
    return Reason.NODE_DOWNLOAD if retryable or between else Reason.CRASHED
