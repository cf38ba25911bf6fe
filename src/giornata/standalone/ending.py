"""How a run ends, and what the process then says to whoever started it."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from giornata.domain.errors import Fault
from giornata.domain.reasons import BLAME, Blame, Reason


class ExitCode(IntEnum):
    """The numbers are those of sysexits.h where it has one."""

    DONE = 0
    FAILED = 1  # the run cannot succeed as it is: it would fail the same way again
    BAD_INPUT = 2
    STORAGE_AWAY = 69
    CRASHED = 70  # the machine, or nobody knows: started again it goes on from the last checkpoint
    STOPPED = 75  # told to go, by a signal; started again it goes on


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The results are complete."""

    step: int
    summary: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """Told to go; a checkpoint was asked for first."""

    step: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """It did not work."""

    reason: Reason
    message: str
    faults: tuple[Fault, ...] = ()


Ending = Finished | Interrupted | Failed


def exit_code_of(ending: Ending) -> ExitCode:
    """What the process ends with."""
    match ending:
        case Finished():
            return ExitCode.DONE
        case Interrupted():
            return ExitCode.STOPPED
        case Failed():
            if BLAME[ending.reason] is not Blame.JOB:
                return ExitCode.CRASHED
            return ExitCode.BAD_INPUT if ending.faults else ExitCode.FAILED
