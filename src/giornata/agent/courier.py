"""Takes what the engine has made to the platform: one thread, in order, each thing uploaded and then committed."""

import collections
import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from giornata.agent.calls import Calls
from giornata.agent.digest import sha256_of
from giornata.agent.events import Delivered, Event, Undelivered
from giornata.agent.held_lease import Monotonic
from giornata.agent.transport import Storage
from giornata.client.node import NodeClient
from giornata.domain.errors import BlobMismatch, BlobMissing, Forbidden, GiornataError, LeaseLost
from giornata.domain.reasons import Reason
from giornata.protocol.uploads import FileToUpload, RenewParts, UploadRequest, UploadTicket
from giornata.protocol.work import (
    CommitArtifact,
    CommitCache,
    CommitCheckpoint,
    Lease,
    NoticeReport,
)

log = logging.getLogger(__name__)

# Bytes that arrive spoilt, or an upload that storage has forgotten: a new upload may do.
TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """To commit as the checkpoint of a step."""

    step: int
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """To commit as a result; the job is not done without it."""

    name: str
    path: Path
    media_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cached:
    """To leave for later jobs."""

    key: str
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """A notice; no file, but it must not get lost either. `notice_id` is what makes two deliveries one."""

    notice_id: str
    name: str
    data: dict[str, Any]


Parcel = Checkpoint | Artifact | Cached | Remark


@dataclass(frozen=True, slots=True, kw_only=True)
class _Uploaded:
    """What each commit says about the bytes."""

    sha256: str
    size_bytes: int
    upload_id: str | None
    etags: tuple[str, ...]


class _Superseded(Exception):
    """A newer checkpoint waits, so that another try at this one would only hold it up."""


class Courier:
    """Delivers parcels in order. Of the checkpoints that wait only the newest is delivered.

    `deliver_points` sends the metrics of every step so far. It is called before a checkpoint is committed: the steps
    before a committed checkpoint are never done again, so a point that is lost then is lost for good.
    """

    def __init__(
        self,
        *,
        node: NodeClient,
        calls: Calls,
        storage: Storage,
        post: Callable[[Event], None],
        monotonic_s: Monotonic,
        patience_s: float,
        deliver_points: Callable[[], None],
    ) -> None:
        self._node, self._calls, self._storage, self._post = node, calls, storage, post
        self._deliver_points = deliver_points
        self._monotonic_s, self._patience_s = monotonic_s, patience_s
        self._waiting: collections.deque[Parcel] = collections.deque()
        self._changed = threading.Condition()
        self._busy = False
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="courier", daemon=True)

    def start(self) -> None:
        """Deliver from now on."""
        self._thread.start()

    def stop(self, *, wait_s: float) -> None:
        """Deliver nothing more. What is on its way is given up at its next piece."""
        with self._changed:
            self._stopped = True
            self._waiting.clear()
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(wait_s)

    def take(self, parcel: Parcel) -> None:
        """Queue a parcel. Never blocks. Its file belongs to the courier, who removes it in the end."""
        with self._changed:
            if isinstance(parcel, Checkpoint):
                for older in [each for each in self._waiting if isinstance(each, Checkpoint)]:
                    self._waiting.remove(older)
                    older.path.unlink(missing_ok=True)
            self._waiting.append(parcel)
            self._changed.notify_all()

    def is_idle(self) -> bool:
        """Whether everything is delivered, or was given up."""
        with self._changed:
            return not self._busy and not self._waiting

    # ---- the thread ----

    def _run(self) -> None:
        while (parcel := self._next()) is not None:
            event = self._outcome(parcel)
            # In one step, so that nobody sees an idle courier who has not yet said what became of the parcel.
            with self._changed:
                if event is not None:
                    self._post(event)
                self._busy = False

    def _next(self) -> Parcel | None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or bool(self._waiting))
            if self._stopped:
                return None
            self._busy = True
            return self._waiting.popleft()

    def _outcome(self, parcel: Parcel) -> Event | None:
        what = _describe(parcel)
        try:
            self._deliver(parcel)
        except (LeaseLost, _Superseded) as error:
            log.info("%s is not delivered: %s", what, error)
            return None
        except Exception as error:  # noqa: BLE001 - the supervisor of this thread
            log.warning("%s could not be delivered: %s", what, error)
            message = f"{what} could not be delivered: {type(error).__name__}: {error}"
            return Undelivered(
                what=what, needed=isinstance(parcel, Artifact), reason=_reason_of(error), message=message
            )
        finally:
            if not isinstance(parcel, Remark):
                parcel.path.unlink(missing_ok=True)
        return Delivered(what=what, checkpoint_step=parcel.step if isinstance(parcel, Checkpoint) else None)

    def _deliver(self, parcel: Parcel) -> None:
        if isinstance(parcel, Remark):
            report = NoticeReport(notice_id=parcel.notice_id, name=parcel.name, data=parcel.data)
            self._calls.persist(lambda lease: self._node.notice(lease, report))
            return
        until_s = self._monotonic_s() + self._patience_s
        sha256, size_bytes = sha256_of(parcel.path), parcel.path.stat().st_size
        wanted = FileToUpload(sha256=sha256, size_bytes=size_bytes)
        for left in reversed(range(TRIES)):
            with contextlib.suppress(*((BlobMismatch, BlobMissing) if left else ())):
                self._upload_and_commit(parcel, wanted, until_s)
                return

    def _upload_and_commit(
        self, parcel: Checkpoint | Artifact | Cached, wanted: FileToUpload, until_s: float
    ) -> None:
        uploaded = self._calls.persist(lambda _: self._upload(parcel, wanted), until=lambda: until_s)
        self._calls.persist(lambda lease: self._commit(lease, parcel, uploaded))

    def _upload(self, parcel: Checkpoint | Artifact | Cached, wanted: FileToUpload) -> _Uploaded:
        """One upload with a ticket of its own. Asks at each piece whether it still makes sense."""
        if isinstance(parcel, Checkpoint) and self._has_newer_checkpoint():
            raise _Superseded("a newer checkpoint waits")
        ticket = self._calls.once(lambda lease: self._ticket(lease, wanted))
        etags: tuple[str, ...] = ()
        if not ticket.exists:
            etags = self._storage.upload(
                parcel.path,
                ticket,
                renew=lambda numbers: self._renew(ticket, numbers),
                progress=lambda _: self._check(),
            )
        return _Uploaded(sha256=wanted.sha256, size_bytes=wanted.size_bytes, upload_id=ticket.upload_id, etags=etags)

    def _ticket(self, lease: Lease, wanted: FileToUpload) -> UploadTicket:
        return self._node.request_uploads(lease, UploadRequest(files=(wanted,))).items[0]

    def _renew(self, ticket: UploadTicket, numbers: list[int]) -> UploadTicket:
        parts = RenewParts(numbers=tuple(numbers))
        return self._calls.once(lambda lease: self._node.renew_upload(lease, ticket.upload_id or "", parts))

    def _has_newer_checkpoint(self) -> bool:
        with self._changed:
            return any(isinstance(each, Checkpoint) for each in self._waiting)

    def _check(self) -> None:
        self._calls.held.check()
        if self._stopped:
            raise LeaseLost("the attempt has ended")

    def _commit(self, lease: Lease, parcel: Checkpoint | Artifact | Cached, done: _Uploaded) -> None:
        said = {
            "sha256": done.sha256,
            "size_bytes": done.size_bytes,
            "upload_id": done.upload_id,
            "etags": done.etags,
        }
        match parcel:
            case Checkpoint():
                self._deliver_points()
                self._node.commit_checkpoint(lease, CommitCheckpoint(step=parcel.step, **said))
            case Artifact():
                commit = CommitArtifact(name=parcel.name, media_type=parcel.media_type, **said)
                self._node.commit_artifact(lease, commit)
            case Cached():
                self._node.commit_cache(lease, parcel.key, CommitCache(**said))


def _describe(parcel: Parcel) -> str:
    match parcel:
        case Checkpoint():
            return f"checkpoint of step {parcel.step}"
        case Artifact():
            return f"artifact {parcel.name}"
        case Cached():
            return f"cache entry {parcel.key}"
        case Remark():
            return f"notice {parcel.name}"


def _reason_of(error: Exception) -> Reason:
    """A file that is not what the protocol wants is the workload's doing; the rest lies between node and storage."""
    if isinstance(error, ValidationError | FileNotFoundError):
        return Reason.CRASHED
    if isinstance(error, OSError):
        return Reason.NODE_DISK
    retryable = isinstance(error, GiornataError) and error.retryable
    between = isinstance(error, BlobMismatch | BlobMissing | Forbidden)
    return Reason.NODE_DOWNLOAD if retryable or between else Reason.CRASHED
