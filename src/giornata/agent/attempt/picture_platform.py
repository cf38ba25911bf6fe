"""The platform of a node for a lease of pictures: the control plane over HTTP."""

import logging
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from giornata.agent.attempt.events import (
    AttemptFailed,
    AttemptOutcome,
    Event,
    Finished,
    PicturesDropped,
    Undelivered,
)
from giornata.agent.attempt.leased_platform import STOP_UPLOADS_S, LeasedPlatform
from giornata.agent.attempt.platform import AttemptState
from giornata.agent.attempt.report import LONGEST_MESSAGE, without_folders
from giornata.agent.claiming import AgentDeps
from giornata.agent.transfer.picture_uploader import PictureKey, PictureResult, PictureUploader
from giornata.agent.transfer.uploader import AttemptUploader
from giornata.agent.work_dir import JobDir
from giornata.domain.jobs.reasons import REPORTABLE_FAILURES, Reason
from giornata.protocol.generation.annotators import ANNOTATION_ENTRY
from giornata.protocol.generation.awaited_annotations import node_kind_of_base
from giornata.protocol.node.pictures import DrawnPicture, FailedPicture, PictureFlag, PictureLease
from giornata.protocol.node.pipe import (
    ArtifactWritten,
    CachePut,
    CheckpointWritten,
    Notice,
    PictureFailed,
    PictureWritten,
    Start,
)

log = logging.getLogger(__name__)


class PicturePlatform(LeasedPlatform):
    """Fetches the files of one picture lease and delivers its pictures (`giornata.agent.attempt.platform.Platform`).

    A lease has pictures of several projects, so what the engine says of it goes to the node's own log.
    """

    def __init__(
        self, lease: PictureLease, *, granted_at_s: float, job_dir: JobDir, state: AttemptState, deps: AgentDeps
    ) -> None:
        super().__init__(lease, granted_at_s=granted_at_s, state=state, deps=deps)
        self._lease, self._job_dir = lease, job_dir
        self._models = ExitStack()  # in use; the machine's store may evict them once it is closed
        self._lock = threading.Lock()
        self._left: set[PictureKey] = {(each.order_id, each.number) for each in lease.pictures}
        self._to_come = set(self._left)  # not handed to the uploader yet
        state.progress.total_steps = len(self._left)
        self._note_left()
        self._uploader = PictureUploader(
            node=deps.node,
            calls=self._calls,
            storage=deps.storage,
            post=state.events.put,
            on_dropped=self._drop,
            on_left=lambda left: self._drop(frozenset(self._left) - left),
            on_completed=self._heartbeat.stop,
            no_more=lambda: not self._to_come and self._annotations.is_idle(),
            monotonic_s=deps.monotonic_s,
            patience_s=deps.settings.transfer_patience_s,
        )
        self._annotations = AttemptUploader(
            node=deps.node,
            calls=self._calls,
            storage=deps.storage,
            post=self._post_of_annotations,
            monotonic_s=deps.monotonic_s,
            patience_s=deps.settings.transfer_patience_s,
            deliver_points=lambda: None,
        )

    # ---- see Platform ----

    def open(self) -> None:
        """Start to renew the lease; start the thread of the uploads."""
        super().open()
        self._uploader.start()
        if self._lease.wanted_annotations:
            self._annotations.start()

    def close(self) -> None:
        """End the threads; nothing more is written under the lease."""
        super().close()
        self._uploader.stop(wait_s=STOP_UPLOADS_S)
        if self._lease.wanted_annotations:
            self._annotations.stop(wait_s=STOP_UPLOADS_S)
        self._models.close()

    def prepare(self) -> Start:
        """Fetch the files that the pictures need."""
        lease = self._lease
        return Start(
            attempt=lease.attempt_id,
            job="",
            kind=node_kind_of_base(lease.base_key),
            spec={
                "pictures": [each.model_dump(mode="json") for each in lease.pictures],
                "wanted_annotations": list(lease.wanted_annotations),
            },
            directory=self._job_dir.work,
            inputs=self._fetching.files(lease.files, self._job_dir, in_use=self._models),
            joint_key=lease.batch_key,
        )

    def log_line(self, text: str) -> None:
        """Put the line into the node's log."""
        log.info("engine: %s", text)

    def stderr_line(self, text: str) -> None:
        """Put the line into the node's log, and keep it: it may explain a crash."""
        super().stderr_line(text)
        self.log_line(text)

    def notice(self, message: Notice) -> None:
        """Put the notice into the node's log."""
        log.info("engine: %s %s", message.name, message.data)

    def upload(self, message: CheckpointWritten | ArtifactWritten | CachePut, path: Path) -> None:
        """Queue an annotation that the project wants to keep, and refuse any other file."""
        wanted = {ANNOTATION_ENTRY + key for key in self._lease.wanted_annotations}
        if isinstance(message, CachePut) and message.key in wanted:
            self._annotations.file(message, path)
            return
        log.warning("the engine announced a %s under a lease of pictures", message.type)
        path.unlink()

    def picture(self, message: PictureWritten | PictureFailed, path: Path | None) -> None:
        """Queue the result for its upload and report. Each picture of the lease is taken once."""
        key = (message.order_id, message.number)
        with self._lock:
            is_wanted = key in self._left
            self._left.discard(key)
        self._note_left()
        if not is_wanted:
            log.warning("picture %d of %s is not wanted, or came twice", message.number, message.order_id)
            if path is not None:
                path.unlink()
            return
        if self._lease.only_annotates and isinstance(message, PictureWritten):
            self._annotated(key, path)
            return
        if isinstance(message, PictureFailed) and (blamed := self.blames_damage(message.reason, message.message)):
            message = message.model_copy(update={"reason": Reason.NODE_DOWNLOAD, "message": blamed})
        try:
            self._uploader.put(PictureResult(said=_result_of(self._private(message)), path=path))
        except ValidationError as error:
            said = f"what the engine says of picture {message.number} of {message.order_id} is no result: {error}"
            self._state.events.put(Undelivered(needed=True, reason=Reason.CRASHED, message=said))
            return
        with self._lock:
            self._to_come.discard(key)
            is_last = not self._to_come
        if is_last:
            self._uploader.hurry()

    def is_idle(self) -> bool:
        """Return True when every result has been reported. Asked only when the engine is done with the lease."""
        self._uploader.hurry()
        return self._uploader.is_idle() and self._annotations.is_idle()

    def find_cache(self, _: str) -> Path | None:
        """Return None: the lease itself brings the annotations that its project keeps."""
        return None

    def report(self, outcome: AttemptOutcome, *, tail: Sequence[str]) -> AttemptOutcome:
        """Report the outcome. An engine that is done without having told of each picture has crashed."""
        if isinstance(outcome, Finished) and self._left:
            said = (
                f"the engine said done and has not told of {len(self._left)} of {len(self._lease.pictures)} pictures"
            )
            outcome = AttemptFailed(Reason.CRASHED, said)
        if self._uploader.has_completed:  # the server has the end already, with every picture
            return outcome
        if isinstance(outcome, AttemptFailed) and (blamed := self.blames_damage(outcome.reason, outcome.message)):
            outcome = AttemptFailed(Reason.NODE_DOWNLOAD, blamed)
        if isinstance(outcome, AttemptFailed):
            outcome = outcome.saying(without_folders(outcome.message, self._deps.settings.work_dir))
        return super().report(outcome, tail=tail)

    def is_ending(self) -> bool:
        """Return True while the last report is under way, which ends the lease, and from then on if it did."""
        return self._uploader.is_completing

    # ---- the pictures ----

    def _private(self, message: PictureWritten | PictureFailed) -> PictureWritten | PictureFailed:
        """Return the message without this node's folders: the owners of pictures read why one failed."""
        if isinstance(message, PictureWritten):
            return message
        said = without_folders(message.message, self._deps.settings.work_dir)
        return message.model_copy(update={"message": said})

    def _post_of_annotations(self, event: Event) -> None:
        """Pass on what the uploader of annotations says. Pictures that wait for one are not done without it."""
        if isinstance(event, Undelivered):
            event = replace(event, needed=self._lease.only_annotates)
        self._state.events.put(event)

    def _annotated(self, key: PictureKey, path: Path | None) -> None:
        """Drop the file of a picture that waits for its annotation: the annotation is what its project keeps."""
        if path is not None:
            path.unlink()
        with self._lock:
            self._to_come.discard(key)

    def _drop(self, keys: frozenset[PictureKey]) -> None:
        """Have the engine stop drawing these pictures. Called by the uploader's thread."""
        with self._lock:
            undrawn = self._left & keys
            self._left -= keys
            self._to_come -= keys
        self._note_left()
        if undrawn:
            self._state.events.put(PicturesDropped(pictures=tuple(sorted(undrawn))))

    def _note_left(self) -> None:
        progress = self._state.progress
        progress.pictures_left = len(self._left)
        progress.step = len(self._lease.pictures) - len(self._left)


def _result_of(message: PictureWritten | PictureFailed) -> DrawnPicture | FailedPicture:
    """Return the body of the report, but for a file's hash and size. Raises ValidationError."""
    picture = {"order_id": message.order_id, "number": message.number}
    if isinstance(message, PictureFailed):
        reason = message.reason if message.reason in REPORTABLE_FAILURES else Reason.CRASHED
        return FailedPicture.model_validate(
            picture | {"reason": reason, "message": message.message[:LONGEST_MESSAGE]}
        )
    flags = message.flags if message.path is not None else message.flags | PictureFlag.BLOCKED
    return DrawnPicture.model_validate(picture | {"media_type": message.media_type, "flags": int(flags)})
