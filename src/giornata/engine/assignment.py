"""One attempt as the engine sees it, and the pipe that takes its messages to the agent."""

import math
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, Protocol

from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.pipe import (
    ArtifactWritten,
    CacheGet,
    CachePut,
    CheckpointWritten,
    FromEngine,
    Log,
    Notice,
    PhaseMessage,
    PictureFailed,
    PictureWritten,
    Progress,
    Start,
)
from giornata.workloads.interface import AgentRequest, Stopped

# The agent answers as soon as its download is done; after this long the thing is made again instead.
CACHE_ANSWER_S = 900.0
LONGEST_LINE = 4000


class MessageWriter(Protocol):
    """Takes messages for the agent; safe to use from several threads."""

    def send(self, message: FromEngine) -> None: ...


class PipeWriter:
    """Writes one JSON line for each message, whole, in the order of the calls."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def send(self, message: FromEngine) -> None:
        """Write the message. A pipe that is closed means that the agent is gone: BrokenPipeError."""
        line = message.model_dump_json().encode() + b"\n"
        with self._lock:
            self._stream.write(line)
            self._stream.flush()


class Assignment:
    """The `Reporter` of one attempt. The reader thread writes requests and answers, the workload's thread reads."""

    def __init__(self, start: Start, channel: MessageWriter, *, cache_answer_s: float = CACHE_ANSWER_S) -> None:
        self.start = start
        self._channel = channel
        self._cache_answer_s = cache_answer_s
        self._changed = threading.Condition()
        self._agent_request = AgentRequest.GO_ON
        self._answers: dict[str, Path | None] = {}
        self._dropped: frozenset[tuple[str, int]] = frozenset()
        self.last_checkpoint_step: int | None = None

    # ---- what the agent says; called by the reader thread ----

    def ask_checkpoint(self) -> None:
        """Ask for a checkpoint. An earlier request to stop stays in force."""
        with self._changed:
            if self._agent_request is AgentRequest.GO_ON:
                self._agent_request = AgentRequest.CHECKPOINT

    def ask_stop(self, *, checkpoint: bool) -> None:
        """Ask the attempt to stop. An order to stop without a checkpoint is final."""
        with self._changed:
            if self._agent_request is not AgentRequest.STOP:
                self._agent_request = AgentRequest.CHECKPOINT_AND_STOP if checkpoint else AgentRequest.STOP
            self._changed.notify_all()

    def answer_cache(self, key: str, path: Path | None) -> None:
        """Take the agent's answer to `cache_get`."""
        with self._changed:
            self._answers[key] = path
            self._changed.notify_all()

    def drop_pictures(self, pictures: Iterable[tuple[str, int]]) -> None:
        """Note that these pictures are no longer wanted."""
        with self._changed:
            self._dropped |= frozenset(pictures)

    # ---- the Reporter; called by the workload ----

    def agent_request(self) -> AgentRequest:
        """Return the agent's present request. CHECKPOINT is given out once per request."""
        with self._changed:
            agent_request = self._agent_request
            if agent_request is AgentRequest.CHECKPOINT:
                self._agent_request = AgentRequest.GO_ON
            return agent_request

    def phase(self, name: str, done: int | None = None, total: int | None = None) -> None:
        """Tell what the workload is busy with."""
        self._channel.send(PhaseMessage(attempt=self.start.attempt, name=name, done=done, total=total))

    def progress(self, step: int, total: int, metrics: dict[str, float]) -> None:
        """Tell of a step. Metrics that are not finite have no JSON and are left out."""
        finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        self._channel.send(Progress(attempt=self.start.attempt, step=step, total=total, metrics=finite))

    def checkpoint(self, step: int, path: Path, cost_s: float) -> None:
        """Tell of a checkpoint that is complete on disk."""
        message = CheckpointWritten(attempt=self.start.attempt, step=step, path=path, cost_s=cost_s)
        self._channel.send(message)
        self.last_checkpoint_step = step

    def artifact(self, name: str, path: Path, media_type: str = "application/octet-stream") -> None:
        """Tell of a result that is complete on disk."""
        message = ArtifactWritten(attempt=self.start.attempt, name=name, path=path, media_type=media_type)
        self._channel.send(message)

    def picture(self, order_id: str, number: int, path: Path | None, *, media_type: str, flags: int = 0) -> None:
        """Tell of a picture that is complete on disk; None: one that the safety checker has blocked."""
        attempt = self.start.attempt
        message = PictureWritten(
            attempt=attempt, order_id=order_id, number=number, path=path, media_type=media_type, flags=flags
        )
        self._channel.send(message)

    def picture_failed(self, order_id: str, number: int, reason: Reason, message: str) -> None:
        """Tell of a picture that cannot be drawn here."""
        attempt = self.start.attempt
        self._channel.send(
            PictureFailed(attempt=attempt, order_id=order_id, number=number, reason=reason, message=message)
        )

    def dropped_pictures(self) -> frozenset[tuple[str, int]]:
        """Return the pictures of this lease, as (order, number), that are no longer wanted."""
        with self._changed:
            return self._dropped

    def cache_get(self, key: str) -> Path | None:
        """Ask for a file and wait for the answer. None when there is none, or none came in time.

        Raises Stopped when the attempt is to stop meanwhile: nothing can be written that is not there yet.
        """
        self._channel.send(CacheGet(attempt=self.start.attempt, key=key))
        with self._changed:
            self._changed.wait_for(lambda: key in self._answers or self._stopping(), timeout=self._cache_answer_s)
            if key in self._answers:
                return self._answers.pop(key)
            if self._stopping():
                raise Stopped(self.last_checkpoint_step)
            return None

    def _stopping(self) -> bool:
        return self._agent_request in {AgentRequest.STOP, AgentRequest.CHECKPOINT_AND_STOP}

    def cache_put(self, key: str, path: Path) -> None:
        """Offer a file to later jobs of the project."""
        self._channel.send(CachePut(attempt=self.start.attempt, key=key, path=path))

    def log(self, line: str) -> None:
        """Send a line for the job's log."""
        self._channel.send(Log(attempt=self.start.attempt, line=line[:LONGEST_LINE]))

    def notice(self, name: str, data: dict[str, Any]) -> None:
        """Send something for the job's events."""
        self._channel.send(Notice(attempt=self.start.attempt, name=name, data=data))
