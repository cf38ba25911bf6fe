"""The messages of an engine about one attempt, and what its silence or its end means."""

import itertools
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from giornata.agent.attempt.events import (
    Abandoned,
    AttemptFailed,
    AttemptOutcome,
    Event,
    Finished,
    Released,
    Undelivered,
)
from giornata.agent.attempt.platform import AttemptProgress, Platform
from giornata.agent.engines.engine_process import EngineProcess
from giornata.agent.transfer.blob_cache import link_or_copy
from giornata.client.retry import Monotonic
from giornata.domain.errors import Fault
from giornata.domain.jobs.reasons import REPORTABLE_FAILURES, Reason
from giornata.protocol.node.pipe import (
    ArtifactWritten,
    CacheGet,
    CachePut,
    CheckpointWritten,
    Done,
    Failed,
    FromEngine,
    Log,
    Notice,
    PhaseMessage,
    PictureFailed,
    PictureWritten,
    Progress,
    StoppedMessage,
)


@dataclass(slots=True, kw_only=True)
class EngineMessageHandler:
    """Takes the messages of one attempt, in their order, in the attempt's loop.

    `heard`: the engine has said a word of this attempt, and does not only keep it in line.
    """

    attempt_id: str
    outbox: Path
    progress: AttemptProgress
    platform: Platform
    watchdog: "Watchdog"
    find_cache: Callable[[str], None]
    post: Callable[[Event], None]
    heard: bool = field(default=False, init=False)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def take(self, message: FromEngine, *, stopping: AttemptOutcome | None) -> AttemptOutcome | None:
        """Act on a message. Returns how the attempt ends, when this is its end.

        `stopping` is how it ends when the engine obeys. An attempt that is abandoned stays so, whatever the engine
        says.
        """
        if getattr(message, "attempt", None) != self.attempt_id:
            return None  # of nobody, or of another attempt
        self.heard = True
        outcome = self._outcome(message, stopping)
        if outcome is not None:
            return stopping if isinstance(stopping, Abandoned) else outcome
        match message:
            case PhaseMessage():
                self._phase(message)
            case Progress():
                self._progress(message)
            case CheckpointWritten() | ArtifactWritten() | CachePut():
                self.watchdog.moved()
                self._file(message)
            case PictureWritten() | PictureFailed():
                self.watchdog.moved()
                self._picture(message)
            case CacheGet():
                self.find_cache(message.key)
            case Log():
                self.platform.log_line(message.line)
            case Notice():
                self.platform.notice(message)
        return None

    def _outcome(self, message: FromEngine, stopping: AttemptOutcome | None) -> AttemptOutcome | None:
        match message:
            case Done():
                self.progress.step = message.step
                return Finished(step=message.step, summary=message.summary)
            case Failed():
                return _failure(message)
            case StoppedMessage():
                return stopping or Released(reason=Reason.RELEASED, message="the engine stopped unasked")
        return None

    def _phase(self, message: PhaseMessage) -> None:
        self.watchdog.moved()
        self.progress.phase = message.name
        self.platform.phase(message)

    def _progress(self, message: Progress) -> None:
        self.watchdog.moved()
        self.progress.step = message.step
        self.progress.total_steps = message.total or self.progress.total_steps
        if message.metrics:
            self.progress.metrics = message.metrics
        self.platform.step(message)

    def _file(self, message: CheckpointWritten | ArtifactWritten | CachePut) -> None:
        try:
            self.platform.upload(message, self._kept(message.path))
        except OSError as error:
            self._not_kept(message, error, needed=isinstance(message, ArtifactWritten))

    def _picture(self, message: PictureWritten | PictureFailed) -> None:
        """Take the file over. The engine's name for it goes, so that a delivered picture leaves the disk."""
        path = None
        try:
            if isinstance(message, PictureWritten) and message.path is not None:
                path = self._kept(message.path)
                message.path.unlink(missing_ok=True)
        except OSError as error:
            self._not_kept(message, error, needed=True)
        else:
            self.platform.picture(message, path)

    def _kept(self, written: Path) -> Path:
        """Take a second name for the file at once: the engine may tidy up while the file waits for its upload."""
        path = self.outbox / f"{next(self._numbers):06d}"
        link_or_copy(written, path)
        return path

    def _not_kept(self, message: FromEngine, error: OSError, *, needed: bool) -> None:
        said = f"{message.type} {getattr(message, 'path', '')} was announced and cannot be kept: {error}"
        reason = Reason.CRASHED if isinstance(error, FileNotFoundError) else Reason.NODE_DISK
        self.post(Undelivered(needed=needed, reason=reason, message=said))


def _failure(message: Failed) -> AttemptFailed:
    """Return the failure for the server: `crashed` when a custom engine names a reason that is not for engines."""
    reason = message.reason if message.reason in REPORTABLE_FAILURES else Reason.CRASHED
    faults = tuple(Fault(where=each.where, message=each.message, hint=each.hint) for each in message.faults)
    return AttemptFailed(reason, message.message, faults=faults, together=message.together)


@dataclass(slots=True, kw_only=True)
class Watchdog:
    """Watches one attempt's engine. `moved` is called whenever the work moves on."""

    engine: EngineProcess
    alive_s: float
    stall_s: float
    monotonic_s: Monotonic
    moved_at_s: float

    def moved(self) -> None:
        """Note a step, a phase or a file: the work goes on."""
        self.moved_at_s = self.monotonic_s()

    def complaint(self) -> AttemptFailed | None:
        """Return why the engine has to be ended, or None.

        An engine that has never said alive is only held to its steps: scripts of twenty lines have no thread for it.
        """
        now_s = self.monotonic_s()
        silent_s, still_s = now_s - self.engine.heard_at_s, now_s - self.moved_at_s
        if self.engine.says_alive and silent_s >= self.alive_s:
            message = f"the engine hangs: not a word for {silent_s:.0f} s, not even from its alive thread"
            return AttemptFailed(Reason.NODE_DRIVER, message)
        if still_s >= self.stall_s:
            return AttemptFailed(Reason.TOO_SLOW, f"no step within {still_s:.0f} s (allowed: {self.stall_s:.0f} s)")
        return None


def crash_of(exit_code: int, when: str = "in the middle of the job") -> AttemptFailed:
    """Return the failure of an attempt whose engine ended by itself. Negative exit codes are signals."""
    if exit_code >= 0:
        message = f"the engine ended with exit code {exit_code} {when}"
    else:
        message = f"the engine was killed by {_signal_name(-exit_code)}"
        if -exit_code == signal.SIGKILL:
            message += "; nobody here sent it, so most likely the system ran out of memory (OOM killer)"
    return AttemptFailed(Reason.CRASHED, message, exit_code=exit_code)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
