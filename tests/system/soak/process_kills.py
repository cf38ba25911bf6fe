"""Kills, pauses and starves whatever works, at random."""

import contextlib
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable

from tests.system.soak.installation import LEASE_S, SoakInstallation, SoakNode

UNUSABLE = 78  # a disk that is full at the start
FINE = {0, UNUSABLE, -signal.SIGKILL, -signal.SIGTERM}
FILLED_S = 4.0
PLACES = 3
# The last place's agent is never killed, so that its memory can be looked at; its engine is.
SPARED = PLACES - 1
WEIGHTS = {
    "kill agent": 3,
    "kill node": 3,
    "kill engine": 4,
    "terminate node": 2,
    "pause node past its lease": 3,
    "kill server": 3,
    "pause server": 1,
    "stop postgres at once": 2,
    "kill postgres": 1,
    "fill a disk": 2,
}


class ProcessKills:
    """Acts every `every_s` on average, and sees to it that each place has an agent."""

    def __init__(self, installation: SoakInstallation, *, every_s: float, seed: int) -> None:
        self.actions: Counter[str] = Counter()
        self.failure = ""
        self._installation, self._every_s, self._rng = installation, every_s, random.Random(seed)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._actions: dict[str, Callable[[], object]] = {
            "kill agent": lambda: self._end(self._agent(), signal.SIGKILL),
            "kill node": lambda: self._agent().signal_all(signal.SIGKILL),
            "kill engine": self._kill_engine,
            "terminate node": lambda: self._end(self._agent(), signal.SIGTERM),
            "pause node past its lease": lambda: self._pause(self._any_agent().pids, LEASE_S * 1.7),
            "kill server": self._kill_server,
            "pause server": lambda: self._pause([self._rng.choice(self._installation.servers).process.pid], 2.0),
            "stop postgres at once": lambda: self._installation.postgres.kill(signal.SIGQUIT),
            "kill postgres": lambda: self._installation.postgres.kill(signal.SIGKILL),
            "fill a disk": self._fill,
        }

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Nobody is paused or missing afterwards."""
        self._stopping.set()
        self._thread.join()
        self.replace_the_dead()

    def replace_the_dead(self) -> None:
        """By a process of the same machine, or by another machine."""
        for place in sorted({*self._installation.agents, *range(PLACES)}):
            agent = self._installation.agents.get(place)
            if agent is not None and agent.process.poll() is None:
                continue
            if agent is not None and agent.process.returncode not in FINE:
                self._installation.ended.append(f"{agent.machine_id} ended with {agent.process.returncode}")
            same = agent is not None and self._rng.random() < 0.5
            self._installation.start_agent(place, machine_id=agent.machine_id if agent is not None and same else None)

    def _work(self) -> None:
        try:
            while not self._stopping.wait(self._rng.expovariate(1 / self._every_s)):
                name = self._rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
                self._actions[name]()
                self.actions[name] += 1
                self.replace_the_dead()
        except Exception:  # noqa: BLE001 - what kills the process_kills is a finding
            self.failure = traceback.format_exc()
            sys.stderr.write(self.failure)

    def _end(self, agent: SoakNode, number: signal.Signals) -> None:
        agent.process.send_signal(number)

    def _kill_server(self) -> None:
        self._installation.servers[1].kill()

    def _agent(self) -> SoakNode:
        return self._some(but=SPARED)

    def _any_agent(self) -> SoakNode:
        return self._some(but=None)

    def _some(self, *, but: int | None) -> SoakNode:
        return self._installation.agents[
            self._rng.choice([place for place in sorted(self._installation.agents) if place != but])
        ]

    def _kill_engine(self) -> None:
        for pid in self._any_agent().engines():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _pause(self, pids: list[int], seconds: float) -> None:
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            if number == signal.SIGSTOP:
                self._stopping.wait(seconds)

    def _fill(self) -> None:
        """The small disk, until nothing fits any more; after a while there is room again."""
        if self._installation.small_disk is None:
            return
        filler = self._installation.small_disk / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        ends_s = time.monotonic() + FILLED_S
        self._stopping.wait(max(0.0, ends_s - time.monotonic()))
        filler.unlink(missing_ok=True)
