"""The events that the threads of an attempt send to its loop, and the outcomes of an attempt."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from giornata.domain.errors import Fault
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.node.pipe import FromEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMessage:
    """The engine sent a message."""

    message: FromEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStderr:
    """The engine wrote a line to its standard error, or one that is no message to its standard output."""

    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEnded:
    """The engine's process has ended; no event of it comes after this. A negative code is the signal that ended it.

    `at_work` are the attempts that it had begun, or been told to, and not ended; `why` is the reason for which the
    node itself has ended it, if it has.
    """

    exit_code: int
    at_work: tuple[str, ...] = ()
    why: "AttemptFailed | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """The loss of the lease: nothing more may be written for this attempt."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Undelivered:
    """A file could not be committed, after all that could be tried. `needed`: the job is not done without it."""

    needed: bool
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFound:
    """The platform answered the engine's question; None when it has nothing, or could not bring it."""

    key: str
    path: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PicturesDropped:
    """The server wants these pictures, as (order, number), no more."""

    pictures: tuple[tuple[str, int], ...]


Event = EngineMessage | EngineStderr | EngineEnded | Lost | Undelivered | CacheFound | PicturesDropped


class AttemptFailed(Exception):
    """The attempt cannot go on. The exception carries the report for the server.

    `together` names all attempts that the same fault ended, this one included; it is empty when there was one only.
    """

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        faults: tuple[Fault, ...] = (),
        exit_code: int | None = None,
        together: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.reason, self.message, self.faults, self.exit_code = reason, message, faults, exit_code
        self.together = together if len(together) > 1 else ()

    def saying(self, message: str) -> "AttemptFailed":
        """Return the same failure in other words."""
        return AttemptFailed(
            self.reason, message, faults=self.faults, exit_code=self.exit_code, together=self.together
        )

    def among(self, attempts: tuple[str, ...]) -> "AttemptFailed":
        """Return the same failure for all of these attempts."""
        return AttemptFailed(
            self.reason, self.message, faults=self.faults, exit_code=self.exit_code, together=attempts
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The engine says that the job is done."""

    step: int
    summary: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """The job goes back to the queue, with no blame on any side. `ordered`: the server asked for this one job."""

    reason: Reason
    message: str
    ordered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandoned:
    """The attempt no longer belongs to this node: nothing more is written, not even its end."""

    why: str


AttemptOutcome = Finished | Released | Abandoned | AttemptFailed
