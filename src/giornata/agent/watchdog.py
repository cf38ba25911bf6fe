"""Whether an engine at work is dead, hung or stuck; and what its end means."""

import signal
from dataclasses import dataclass

from giornata.agent.engine_process import EngineProcess
from giornata.agent.events import AttemptFailed
from giornata.agent.held_lease import Monotonic
from giornata.domain.reasons import Reason


@dataclass(slots=True, kw_only=True)
class Watchdog:
    """Watches one attempt's engine. `moved` is called whenever the work moves on."""

    engine: EngineProcess
    alive_s: float
    stall_s: float
    monotonic_s: Monotonic
    moved_at_s: float

    def moved(self) -> None:
        """A step, a phase, a file: the work goes on."""
        self.moved_at_s = self.monotonic_s()

    def complaint(self) -> AttemptFailed | None:
        """Why the engine has to be ended, or None.

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
    """The failure of an attempt whose engine ended by itself. Negative codes are signals."""
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
