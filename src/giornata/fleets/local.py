"""A fleet of node processes on this machine.

Each node is `giornata node …` in a session of its own. A node that ends is started again, later each time when it
ends at once. Stopping is SIGTERM, on which a node writes a checkpoint, commits it and gives its job back; what is
still there after the grace time is killed with everything that it started.
"""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

POLL_S = 0.2
FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 30.0
HEALTHY_AFTER_S = 20.0

Command = Callable[[int], Sequence[str]]
"""The command line of the node in slot N."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One slot of the fleet. `pid` is None while the slot waits to start again."""

    slot: int
    name: str
    pid: int | None
    starts: int


@dataclass(slots=True)
class _Slot:
    number: int
    process: subprocess.Popen[bytes] | None = None
    started_at_s: float = 0.0
    start_again_at_s: float = 0.0
    backoff_s: float = FIRST_BACKOFF_S
    starts: int = 0


@dataclass(slots=True, kw_only=True)
class LocalFleet:
    """Keeps `desired` nodes alive. Thread-safe; `start` before anything else, `stop` at the end."""

    command: Command
    log_directory: Path
    environment: Mapping[str, str] | None = None
    price_micro_usd_per_hour: int = 0
    grace_s: float = 30.0
    monotonic_s: Callable[[], float] = time.monotonic
    _slots: dict[int, _Slot] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self, nodes: int) -> None:
        """Start `nodes` nodes and watch over them."""
        self.log_directory.mkdir(parents=True, exist_ok=True)
        self.desired(nodes)
        self._thread = threading.Thread(target=self._watch, name="local-fleet", daemon=True)
        self._thread.start()

    def desired(self, nodes: int) -> None:
        """Ask for this many nodes. Fewer than now: the highest slots are drained."""
        with self._lock:
            for number in range(nodes):
                self._slots.setdefault(number, _Slot(number))
            surplus = [self._slots.pop(number) for number in sorted(self._slots) if number >= nodes]
        self._end([slot.process for slot in surplus if slot.process is not None])

    def list(self) -> list[Instance]:
        """Every slot, with the process that is in it now."""
        with self._lock:
            return [
                Instance(
                    slot=slot.number,
                    name=f"local-{slot.number}",
                    pid=slot.process.pid if slot.process is not None and slot.process.poll() is None else None,
                    starts=slot.starts,
                )
                for slot in self._slots.values()
            ]

    def drain(self, slot: int) -> None:
        """Ask the node to finish with a checkpoint; it is started again afterwards."""
        with self._lock:
            process = self._slots[slot].process
        if process is not None:
            _signal_group(process, signal.SIGTERM)

    def reallocate(self, slot: int) -> None:
        """Replace the node at once, without asking it."""
        with self._lock:
            process = self._slots[slot].process
        if process is not None:
            _signal_group(process, signal.SIGKILL)

    def price(self) -> int:
        """Micro-dollars per node hour."""
        return self.price_micro_usd_per_hour

    def stop(self) -> None:
        """Drain every node and wait for it, at most the grace time."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            processes = [slot.process for slot in self._slots.values() if slot.process is not None]
            self._slots.clear()
        self._end(processes)

    def _watch(self) -> None:
        while not self._stopping.wait(POLL_S):
            with self._lock:
                for slot in self._slots.values():
                    self._tend(slot)

    def _tend(self, slot: _Slot) -> None:
        now_s = self.monotonic_s()
        if slot.process is not None:
            if slot.process.poll() is None:
                return
            # The agent may have gone without its engine: nothing that it started survives it.
            _signal_group(slot.process, signal.SIGKILL)
            lived_s = now_s - slot.started_at_s
            slot.backoff_s = FIRST_BACKOFF_S if lived_s >= HEALTHY_AFTER_S else min(slot.backoff_s * 2, MAX_BACKOFF_S)
            slot.start_again_at_s = now_s + (slot.backoff_s if slot.starts > 1 else FIRST_BACKOFF_S)
            slot.process = None
        if now_s >= slot.start_again_at_s:
            slot.process = self._spawn(slot.number)
            slot.started_at_s = now_s
            slot.starts += 1

    def _spawn(self, number: int) -> subprocess.Popen[bytes]:
        with (self.log_directory / f"local-{number}.log").open("ab") as log:
            return subprocess.Popen(
                list(self.command(number)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=None if self.environment is None else dict(self.environment),
            )

    def _end(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        for process in processes:
            _signal_group(process, signal.SIGTERM)
        deadline_s = self.monotonic_s() + self.grace_s
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=max(0.0, deadline_s - self.monotonic_s()))
            _signal_group(process, signal.SIGKILL)
            process.wait()


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    # The engine has a session of its own and dies with the agent's pipe; the group reaches the rest.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
