"""One place for a node process on this machine."""

import os
import re
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 30.0
HEALTHY_AFTER_S = 20.0
TAIL_BYTES = 4096
LONGEST_LINE = 200
# When, how bad and who: what a logger writes before it says anything.
BEFORE_MESSAGE = re.compile(r"^[\d-]{10} [\d:,]{8,12} [A-Z]+ \S+ ")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndingProcess:
    """A process that was asked to go, and is killed at the deadline."""

    number: int
    instance_id: str
    process: subprocess.Popen[bytes]
    deadline_s: float

    def over(self, now_s: float) -> bool:
        """Return True when the process ended or is late, and kill its process group: no child survives."""
        if self.process.poll() is None and now_s < self.deadline_s:
            return False
        _signal_group(self.process, signal.SIGKILL)
        self.process.wait()
        return True

    def wait(self, monotonic_s: Callable[[], float]) -> None:
        """Wait for the end of the process, at most to the deadline, then kill its process group."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=max(0.0, self.deadline_s - monotonic_s()))
        _signal_group(self.process, signal.SIGKILL)
        self.process.wait()


@dataclass(slots=True, kw_only=True)
class Slot:
    """A place, and the process that is in it. `instance_id` is the process's, or of the one that is to come.

    `leaves`: when there are to be fewer, this process is the first to go. `ended` is how the one before it ended, and
    `log` where processes of this place write. `restarts` counts the processes that ended by themselves.
    """

    number: int
    instance_id: str
    process: subprocess.Popen[bytes] | None = None
    started_at_s: float = 0.0
    start_again_at_s: float = 0.0
    backoff_s: float = FIRST_BACKOFF_S
    starts: int = 0
    restarts: int = 0
    leaves: bool = False
    ended: str = ""
    log: Path | None = None

    @property
    def alive(self) -> bool:
        """True when a process runs in this place."""
        return self.process is not None and self.process.poll() is None

    def due(self, now_s: float) -> bool:
        """Return True when a process should be started now."""
        return self.process is None and now_s >= self.start_again_at_s

    def start(self, process: subprocess.Popen[bytes], *, now_s: float) -> None:
        """Note that the process was started at `now_s`."""
        self.process, self.started_at_s = process, now_s
        self.starts += 1

    def look_after(self, now_s: float, *, next_id: Callable[[int], str]) -> None:
        """Note that the process has ended, and when another is to come: ever later while they end at once."""
        if self.process is None or self.alive:
            return
        lived_s = now_s - self.started_at_s
        self.restarts += 1
        self.ended, self.leaves = how_it_ended(self.process.returncode, self.log), False
        self.backoff_s = FIRST_BACKOFF_S if lived_s >= HEALTHY_AFTER_S else min(self.backoff_s * 2, MAX_BACKOFF_S)
        self.kill()
        self.process, self.instance_id = None, next_id(self.number)
        self.start_again_at_s = now_s + (self.backoff_s if self.starts > 1 else FIRST_BACKOFF_S)

    def begin_again(self, instance_id: str, *, now_s: float) -> None:
        """Let another process start soon, on request."""
        self.ended, self.leaves = "", False
        self.process, self.instance_id, self.start_again_at_s = None, instance_id, now_s + FIRST_BACKOFF_S

    def trouble(self, now_s: float) -> str:
        """Return the unexpected end of the previous process, until the present one has lived for a while."""
        well = self.alive and now_s - self.started_at_s >= HEALTHY_AFTER_S
        return "" if well else self.ended

    def ask_to_end(self) -> None:
        """Send SIGTERM to the process group of the node."""
        if self.process is not None:
            _signal_group(self.process, signal.SIGTERM)

    def kill(self) -> None:
        """End it with everything that it started, which may have outlived it."""
        if self.process is not None:
            _signal_group(self.process, signal.SIGKILL)
            self.process.wait()

    def end(self, *, deadline_s: float) -> EndingProcess:
        """Ask it to end; it is given up to the deadline."""
        if self.process is None:
            raise ValueError(f"nothing runs in slot {self.number}")
        self.ask_to_end()
        return EndingProcess(
            number=self.number, instance_id=self.instance_id, process=self.process, deadline_s=deadline_s
        )


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    # The engine has a session of its own and dies with the agent's pipe; the group reaches the rest.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def how_it_ended(status: int | None, log: Path | None) -> str:
    """Describe the end of a process with its last line; empty when the process ended as it should."""
    if not status:
        return ""
    how = f"ended with status {status}" if status > 0 else f"was killed by {_signal_name(-status)}"
    line = "" if log is None else last_line(log)
    return f"the process before {how}" + (f": {line}" if line else "")


def last_line(log: Path) -> str:
    """The last line of a file that has something in it, and of that the end, where programs say why; empty when there
    is none, or no file."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    written = [line.strip() for line in lines if line.strip()]
    line = BEFORE_MESSAGE.sub("", written[-1]) if written else ""
    return line if len(line) <= LONGEST_LINE else f"…{line[-LONGEST_LINE:]}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
