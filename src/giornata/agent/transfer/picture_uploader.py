"""Delivers the pictures of a lease: hashed, uploaded several at a time, and reported several at a time."""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from giornata.agent.attempt.events import Event, Undelivered
from giornata.agent.attempt.lease import LeaseCalls
from giornata.agent.transfer.blob_cache import sha256_of
from giornata.agent.transfer.transport import ObjectStorage
from giornata.agent.transfer.uploader import TRIES, reason_of_delivery
from giornata.client.node import NodeClient
from giornata.client.retry import Monotonic, QueuedTask, TaskQueue
from giornata.domain.errors import BlobMismatch, BlobMissing, LeaseLost
from giornata.protocol.node.pictures import (
    DrawnPicture,
    FailedPicture,
    PictureId,
    PictureResults,
    PictureResultsReply,
    PictureUploads,
)
from giornata.protocol.uploads import SignedUrl, UploadTicket

log = logging.getLogger(__name__)

PictureKey = tuple[str, int]
"""The id of an order, and the number of a picture in it."""

REPORT_AFTER_S = 0.5
"""A report waits so long for further pictures, unless it is full or no further picture comes."""
REPORT_AT_ONCE = 8
UPLOADS_AT_ONCE = 4
# The server names no end of these URLs. Storage refuses a URL that has run out; then the agent asks for a fresh one.
NO_END = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureResult:
    """A picture that the engine has told about. The file of a drawn one is at `path`; others have none."""

    said: DrawnPicture | FailedPicture
    path: Path | None = None

    @property
    def key(self) -> PictureKey:
        """The picture's order and number."""
        return key_of(self.said)


class PictureUploader:
    """Uploads and reports the pictures of one lease.

    `on_dropped` gets pictures that nobody wants any more, and `on_left` all that the lease still has to draw.
    `no_more` tells that no further picture comes: a report need not wait then, and the last one completes the lease,
    which `on_completed` is told. Several threads may call these methods.
    """

    def __init__(
        self,
        *,
        node: NodeClient,
        calls: LeaseCalls,
        storage: ObjectStorage,
        post: Callable[[Event], None],
        on_dropped: Callable[[frozenset[PictureKey]], None],
        on_left: Callable[[frozenset[PictureKey]], None],
        on_completed: Callable[[], None],
        no_more: Callable[[], bool],
        monotonic_s: Monotonic,
        patience_s: float,
        report_after_s: float = REPORT_AFTER_S,
    ) -> None:
        self._node, self._calls, self._storage, self._post = node, calls, storage, post
        self._on_dropped, self._on_left, self._no_more = on_dropped, on_left, no_more
        self._on_completed = on_completed
        self._monotonic_s, self._patience_s, self._report_after_s = monotonic_s, patience_s, report_after_s
        self._changed = threading.Condition()
        self._waiting: list[PictureResult] = []
        self._in_hurry, self._has_failed = False, False
        self.is_completing = False
        """A report is under way that completes the lease, or has done so."""
        self.has_completed = False
        """The server has completed the lease with the last report."""
        self._queue = TaskQueue("pictures")
        self.start, self.is_idle = self._queue.start, self._queue.is_idle

    def put(self, result: PictureResult) -> None:
        """Queue a result. Never blocks. The uploader removes the file in the end."""
        with self._changed:
            self._waiting.append(result)
            self._changed.notify_all()
        # A task delivers all that waits when its turn comes, so one waiting task is enough.
        self._queue.put(QueuedTask(what="pictures", run=self._deliver, ended=self._ended, replaces="pictures"))

    def hurry(self) -> None:
        """Report at once from now on: the engine is done with the lease."""
        with self._changed:
            self._in_hurry = True
            self._changed.notify_all()

    def stop(self, *, wait_s: float) -> None:
        """Begin no upload any more, and wait so long for those that run."""
        self.hurry()
        self._queue.stop(wait_s=wait_s)

    # ---- the queue's thread ----

    def _deliver(self) -> None:
        taken = self._take()
        try:
            left = [_hashed(each) for each in taken]
            for _ in range(TRIES):
                left = self._upload_and_report(left)
                if not left:
                    return
            names = ", ".join(f"{number} of {order_id}" for order_id, number in (each.key for each in left))
            raise BlobMissing(f"storage took no good bytes of these pictures: {names}")
        finally:
            _delete_files(taken)

    def _ended(self, error: Exception | None) -> None:
        if isinstance(error, LeaseLost):
            log.info("pictures are not delivered: %s", error)
        elif error is not None:
            self._has_failed = True
            log.warning("pictures could not be delivered: %s", error)
            message = f"pictures could not be delivered: {type(error).__name__}: {error}"
            self._post(Undelivered(needed=True, reason=reason_of_delivery(error), message=message))

    def _take(self) -> list[PictureResult]:
        """Return all results that wait, after a short time in which others may come to them."""
        with self._changed:
            if self._waiting:
                self._changed.wait_for(self._is_due, self._report_after_s)
            taken, self._waiting = self._waiting, []
        return taken

    def _is_due(self) -> bool:
        return self._in_hurry or len(self._waiting) >= REPORT_AT_ONCE or self._no_more()

    def _upload_and_report(self, results: Sequence[PictureResult]) -> list[PictureResult]:
        """Deliver the results, and return those that have to be tried again.

        A slow upload does not delay the report of others. An error is raised after all good uploads were reported.
        """
        again: list[PictureResult] = []
        errors: list[BaseException] = []
        tickets = self._tickets(each for each in results if each.path is not None)
        ready = [each for each in results if each.path is None]
        until_s = self._monotonic_s() + self._patience_s
        with ThreadPoolExecutor(UPLOADS_AT_ONCE, thread_name_prefix="picture") as pool:
            running = {
                pool.submit(self._upload, each, each.path, tickets[each.key], until_s): each
                for each in results
                if each.path is not None and each.key in tickets
            }
            while running or ready:
                again += self._report(ready, is_last=not running and not again and not errors)
                finished, _ = wait(running, timeout=self._report_after_s)
                ready = []
                for future in finished:
                    result = running.pop(future)
                    match future.exception():
                        case None:
                            ready.append(result)
                        case BlobMismatch() | BlobMissing():
                            again.append(result)
                        case error:
                            errors.append(error)
        if errors:
            raise errors[0]
        return again

    def _tickets(self, results: Iterable[PictureResult]) -> dict[PictureKey, UploadTicket]:
        """Ask where to put the pictures. One without a URL is not wanted any more."""
        drawn = {each.key: each.said for each in results if isinstance(each.said, DrawnPicture)}
        if not drawn:
            return {}
        request = PictureUploads(pictures=tuple(drawn.values()))
        reply = self._calls.persist(lambda lease: self._node.picture_uploads(lease, request))
        given = {(each.order_id, each.number): each for each in reply.uploads}
        self._drop(drawn.keys() - given.keys())
        return {
            key: UploadTicket(
                sha256=said.sha256 or "",
                exists=False,
                put=SignedUrl(method="PUT", url=given[key].url, headers=given[key].headers, expires_at=NO_END),
            )
            for key, said in drawn.items()
            if key in given
        }

    def _upload(self, result: PictureResult, path: Path, ticket: UploadTicket, until_s: float) -> None:
        """Upload one file, and check at each piece that the upload still makes sense."""

        def renew(_: list[int]) -> UploadTicket:
            fresh = self._tickets([result])
            if result.key not in fresh:
                raise BlobMissing("the picture is not wanted any more")
            return fresh[result.key]

        def send(_: object) -> None:
            self._storage.upload(path, ticket, renew=renew, progress=lambda _: self._check())

        self._calls.persist(send, until=lambda: until_s)

    def _check(self) -> None:
        self._calls.held.check()
        if self._queue.is_stopped:
            raise LeaseLost("the attempt has ended")

    def _report(self, results: Sequence[PictureResult], *, is_last: bool = False) -> list[PictureResult]:
        """Report results, and return drawn pictures that the server neither accepts nor drops.

        The report completes the lease when `is_last` of what was taken, and nothing else comes.

        The server refuses a whole report for one picture whose bytes storage does not have. The halves of the report
        then tell which picture that is.
        """
        if not results:
            return []
        report = PictureResults(
            drawn=tuple(each.said for each in results if isinstance(each.said, DrawnPicture)),
            failed=tuple(each.said for each in results if isinstance(each.said, FailedPicture)),
            complete=is_last and self._is_all(),
        )
        try:
            reply = self._send(report)
        except (BlobMismatch, BlobMissing):
            if len(results) == 1:
                return list(results)
            half = len(results) // 2
            return [*self._report(results[:half]), *self._report(results[half:])]
        self._drop({key_of(each) for each in reply.dropped})
        if reply.left is not None:
            self._on_left(frozenset(map(key_of, reply.left)))
        settled = {key_of(each) for each in (*reply.accepted, *reply.dropped)}
        again = [each for each in results if each.path is not None and each.key not in settled]
        _delete_files([each for each in results if each not in again])
        return again

    def _is_all(self) -> bool:
        """Return True when no picture waits or comes, and none was left behind."""
        with self._changed:
            return self._no_more() and not self._waiting and not self._has_failed

    def _send(self, report: PictureResults) -> PictureResultsReply:
        self.is_completing = report.complete
        try:
            reply = self._calls.persist(lambda lease: self._node.report_pictures(lease, report))
            self.has_completed = reply.ended
        finally:
            self.is_completing = self.has_completed
        if self.has_completed:
            self._on_completed()
        return reply

    def _drop(self, keys: Iterable[PictureKey]) -> None:
        if dropped := frozenset(keys):
            self._on_dropped(dropped)


def key_of(picture: PictureId) -> PictureKey:
    """Return the picture's order and number."""
    return picture.order_id, picture.number


def _hashed(result: PictureResult) -> PictureResult:
    """Return the result with the hash and size of its file. The file is read in pieces."""
    if result.path is None:
        return result
    more = {"sha256": sha256_of(result.path), "size_bytes": result.path.stat().st_size}
    said = DrawnPicture.model_validate({**result.said.model_dump(), **more})
    return PictureResult(said=said, path=result.path)


def _delete_files(results: Iterable[PictureResult]) -> None:
    for each in results:
        if each.path is not None:
            each.path.unlink(missing_ok=True)
