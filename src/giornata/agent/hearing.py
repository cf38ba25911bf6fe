"""What the engine says, turned into parcels, lines and numbers."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from giornata.agent.blob_cache import link_or_copy
from giornata.agent.courier import Artifact, Cached, Checkpoint, Courier, Remark
from giornata.agent.events import AttemptFailed, Event, Undelivered
from giornata.agent.journal import Journal
from giornata.agent.standing import Dropped, Ending, Finished, GivenBack, Standing
from giornata.agent.watchdog import Watchdog
from giornata.domain.errors import Fault
from giornata.domain.reasons import REPORTABLE_FAILURES, Reason
from giornata.protocol.pipe import (
    ArtifactWritten,
    CacheGet,
    CachePut,
    CheckpointWritten,
    Done,
    Failed,
    FromEngine,
    Log,
    Notice,
    Phase,
    Progress,
    Stopped,
)


@dataclass(slots=True, kw_only=True)
class Hearing:
    """Takes the messages of one attempt, in their order, in the attempt's loop.

    `heard`: the engine has said a word of it, and does not only keep it in line.
    """

    attempt_id: str
    outbox: Path
    standing: Standing
    courier: Courier
    journal: Journal
    watchdog: Watchdog
    nudge: Callable[[], None]
    find_cache: Callable[[str], None]
    post: Callable[[Event], None]
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)
    heard: bool = field(default=False, init=False)
    _stepped: bool = False

    def take(self, message: FromEngine, *, stopping: Ending | None) -> Ending | None:
        """Act on a message. Returns how the attempt ends, when this is its end.

        `stopping` is how it ends when the engine obeys; a job that is dropped is dropped whatever the engine says.
        """
        if getattr(message, "attempt", None) != self.attempt_id:
            return None  # of nobody, or of another attempt
        self.heard = True
        ending = self._ending(message, stopping)
        if ending is not None:
            return stopping if isinstance(stopping, Dropped) else ending
        match message:
            case Phase():
                self._phase(message)
            case Progress():
                self._progress(message)
            case CheckpointWritten() | ArtifactWritten() | CachePut():
                self.watchdog.moved()
                self._file(message)
            case CacheGet():
                self.find_cache(message.key)
            case Log():
                self.journal.line(message.line)
            case Notice():
                notice_id = f"notice-{next(self._numbers):06d}"
                self.courier.take(Remark(notice_id=notice_id, name=message.name, data=message.data))
        return None

    def _ending(self, message: FromEngine, stopping: Ending | None) -> Ending | None:
        match message:
            case Done():
                self.standing.step = message.step
                return Finished(step=message.step, summary=message.summary)
            case Failed():
                return _failure(message)
            case Stopped():
                return stopping or GivenBack(reason=Reason.RELEASED, message="the engine stopped unasked")
        return None

    def _phase(self, message: Phase) -> None:
        self.watchdog.moved()
        if message.name != self.standing.phase:
            self.standing.phase = message.name
            self.nudge()

    def _progress(self, message: Progress) -> None:
        self.watchdog.moved()
        self.standing.step = message.step
        self.standing.total_steps = message.total or self.standing.total_steps
        if message.metrics:
            self.standing.metrics = message.metrics
            self.journal.metrics(message.step, message.metrics)
        if not self._stepped:
            self._stepped = True
            self.nudge()

    def _file(self, message: CheckpointWritten | ArtifactWritten | CachePut) -> None:
        """Take a second name for the file at once: the engine may tidy up while it waits for its upload."""
        path = self.outbox / f"{next(self._numbers):06d}"
        needed = isinstance(message, ArtifactWritten)
        try:
            link_or_copy(message.path, path)
        except OSError as error:
            said = f"{message.type} {message.path} was announced and cannot be read: {error}"
            reason = Reason.CRASHED if isinstance(error, FileNotFoundError) else Reason.NODE_DISK
            self.post(Undelivered(what=message.type, needed=needed, reason=reason, message=said))
            return
        match message:
            case CheckpointWritten():
                self.courier.take(Checkpoint(step=message.step, path=path))
            case ArtifactWritten():
                self.standing.artifacts = (*self.standing.artifacts, message.name)
                self.courier.take(Artifact(name=message.name, path=path, media_type=message.media_type))
            case CachePut():
                self.courier.take(Cached(key=message.key, path=path))


def _failure(message: Failed) -> AttemptFailed:
    """What the server is told. An engine of somebody's own may name a reason that is not an engine's to name."""
    reason = message.reason if message.reason in REPORTABLE_FAILURES else Reason.CRASHED
    faults = tuple(Fault(where=each.where, message=each.message, hint=each.hint) for each in message.faults)
    return AttemptFailed(reason, message.message, faults=faults, together=message.together)
