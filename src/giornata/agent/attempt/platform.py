"""The platform that a job comes from, as its attempt uses the platform.

There are three platforms. Two are the control plane over HTTP: for a job (`giornata.agent.attempt.control_plane`),
and for a lease of pictures (`giornata.agent.attempt.picture_platform`). The third is a folder or bucket without a
server (`giornata.standalone.platform`).
"""

import math
import queue
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from giornata.agent.attempt.commands import Leaving, ServerCommands
from giornata.agent.attempt.events import AttemptOutcome, Event
from giornata.client.retry import Monotonic
from giornata.protocol.node.pipe import (
    ArtifactWritten,
    CachePut,
    CheckpointWritten,
    Notice,
    PhaseMessage,
    PictureFailed,
    PictureWritten,
    Progress,
    Start,
)
from giornata.protocol.node.work import Heartbeat

LONGEST_PHASE = 64
MOST_METRICS = 64
MOST_MODELS = 32


@dataclass(slots=True, kw_only=True)
class AttemptProgress:
    """The progress of an attempt. The attempt's loop writes, the heartbeat thread reads: each assignment is whole.

    `pictures_left`: pictures of the lease that the engine has still to draw; None for a job.
    """

    phase: str = "fetching"
    step: int = 0
    total_steps: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    artifacts: tuple[str, ...] = ()
    pictures_left: int | None = None

    def heartbeat(self, *, engine_pid: int | None, held_models: tuple[str, ...]) -> Heartbeat:
        """The body of the next heartbeat. Metrics that are not finite have no JSON and are left out."""
        finite = {name: value for name, value in list(self.metrics.items())[:MOST_METRICS] if math.isfinite(value)}
        return Heartbeat(
            step=self.step,
            total_steps=self.total_steps,
            phase=self.phase[:LONGEST_PHASE],
            engine_pid=engine_pid,
            metrics=finite,
            held_models=held_models[:MOST_MODELS],
        )


@dataclass(slots=True, kw_only=True)
class AttemptState:
    """Shared by the loop of an attempt and the threads of its platform. `ticked_at_s`: when the loop last turned."""

    commands: ServerCommands
    monotonic_s: Monotonic
    events: "queue.SimpleQueue[Event]" = field(default_factory=queue.SimpleQueue)
    progress: AttemptProgress = field(default_factory=AttemptProgress)
    ticked_at_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.ticked_at_s = self.monotonic_s()

    def tick(self) -> None:
        """Note that the attempt's own thread is at work."""
        self.ticked_at_s = self.monotonic_s()

    def check(self) -> None:
        """Raise Leaving when the attempt has to end. Called by several threads, all of which work for the loop."""
        self.tick()
        if (outcome := self.commands.wanted()) is not None:
            raise Leaving(outcome)


class Platform(Protocol):
    """Gives an attempt its job, and takes what the job makes. The loop's thread calls all but `find_cache`."""

    def open(self) -> None:
        """Start the threads of the platform."""

    def close(self) -> None:
        """End them. Called exactly once, however the attempt ends."""

    def check(self) -> None:
        """Raise LeaseLost or Leaving when it makes no sense to go on."""

    def prepare(self) -> Start:
        """Have inputs and the checkpoint to resume from on disk. Raises AttemptFailed, and what `check` raises."""

    def why_lost(self) -> str | None:
        """Return the reason why nothing more may be written for this attempt; None while writing is allowed."""

    def phase(self, message: PhaseMessage) -> None:
        """Tell what the engine is busy with."""

    def step(self, message: Progress) -> None:
        """Report a finished step with its metrics."""

    def log_line(self, text: str) -> None:
        """Take a line of the workload's log."""

    def stderr_line(self, text: str) -> None:
        """Take a line that the engine wrote to its standard error."""

    def notice(self, message: Notice) -> None:
        """Put something into the job's events."""

    def upload(self, message: CheckpointWritten | ArtifactWritten | CachePut, path: Path) -> None:
        """Queue a file for upload. The file at `path` belongs to the platform from now on. Never
        blocks. An OSError means that the file cannot be kept."""

    def picture(self, message: PictureWritten | PictureFailed, path: Path | None) -> None:
        """Queue a picture's result. The file at `path` belongs to the platform from now on; a picture that was
        blocked or failed has none. Never blocks."""

    def is_idle(self) -> bool:
        """Return True when every upload has arrived, or was given up."""

    def out_of_time(self, outcome: AttemptOutcome) -> AttemptOutcome:
        """Return the outcome of an attempt that cannot wait for its uploads any more."""

    def find_cache(self, key: str) -> Path | None:
        """Return a file with what was kept under the key, or None. Called in a thread of its own."""

    def report(self, outcome: AttemptOutcome, *, tail: Sequence[str]) -> AttemptOutcome:
        """Tell how the attempt ended, and return the outcome that holds then. `tail` are the engine's last lines."""
