"""The interface of a workload, and of the engine that runs it. Loads no torch."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.pipe import Start

Clock = Callable[[], float]
"""Seconds that only ever grow."""


class AgentRequest(Enum):
    """The agent's request to a running attempt; workloads ask for it between steps."""

    GO_ON = "go_on"
    CHECKPOINT = "checkpoint"  # write one, then go on
    CHECKPOINT_AND_STOP = "checkpoint_and_stop"
    STOP = "stop"  # write nothing more


class Stopped(Exception):
    """An exception raised by a workload that has obeyed a request to stop."""

    def __init__(self, step: int | None = None) -> None:
        super().__init__(f"stopped at step {step}")
        self.step = step


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The final step and summary that a finished workload reports besides its artifacts."""

    step: int
    summary: dict[str, Any]


class Reporter(Protocol):
    """The engine's side of one attempt. Every path handed over is complete on disk."""

    def agent_request(self) -> AgentRequest:
        """Return the agent's present request. CHECKPOINT is given out once per request."""

    def phase(self, name: str, done: int | None = None, total: int | None = None) -> None: ...

    def progress(self, step: int, total: int, metrics: dict[str, float]) -> None: ...

    def checkpoint(self, step: int, path: Path, cost_s: float) -> None: ...

    def artifact(self, name: str, path: Path, media_type: str = "application/octet-stream") -> None: ...

    def picture(self, order_id: str, number: int, path: Path | None, *, media_type: str, flags: int = 0) -> None:
        """Hand over a picture of a lease; None for one that the safety checker has blocked."""

    def picture_failed(self, order_id: str, number: int, reason: Reason, message: str) -> None:
        """Report a picture that cannot be drawn here. The other pictures go on."""

    def dropped_pictures(self) -> frozenset[tuple[str, int]]:
        """Return the pictures of this lease, as (order, number), that are no longer wanted."""

    def cache_get(self, key: str) -> Path | None:
        """Return a file that an earlier job of the project made under this key, or None. Blocks."""

    def cache_put(self, key: str, path: Path) -> None: ...

    def log(self, line: str) -> None: ...

    def notice(self, name: str, data: dict[str, Any]) -> None: ...


class Workload(Protocol):
    """One kind of work. An instance lives as long as the engine and keeps its models warm."""

    def run(self, start: Start, reporter: Reporter) -> Outcome:
        """Do the whole attempt. Raises Stopped or WorkloadFailed; anything else counts as a crash."""

    def held(self) -> tuple[str, ...]:
        """Return the keys of the models that are warm."""


class BatchSession(Protocol):
    """The attempts that a workload carries out at the same time, as the engine hands them over."""

    def next(self) -> tuple[Start, Reporter] | None:
        """Return another attempt that may join in, if one waits. Never blocks."""

    def ended(self, start: Start, end: "Outcome | Exception") -> None:
        """Report that this attempt has ended so (Stopped is an end, too), whatever becomes of the others."""

    def offer(self, places: int) -> None:
        """Allow up to so many attempts at work at once from now on; the agent is told how many more could come."""


class JointWorkload(Workload, Protocol):
    """A workload that can carry out several attempts at once."""

    @property
    def places(self) -> int:
        """Return how many attempts it carries out at once at most. With 1 it is a plain workload."""

    def joins(self, start: Start) -> str | None:
        """Return the attempt's key: attempts of equal keys may run together; None for one that has to run alone."""

    def run_many(self, session: BatchSession) -> None:
        """Carry out attempts until the session has no more and all have ended.

        An exception ends all that are left.
        """
