"""Servers and nodes in processes of their own."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from tests.system.conftest import MARK, PATIENCE_S, marked, until

# Short, since tests wait for leases to run out; and long, for tests in which none shall on a busy machine.
LEASE_S = 2.0
LONG_LEASE_S = 6.0
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("GIORNATA_", MARK))}


@dataclass(kw_only=True)
class RunningServer:
    """`giornata server` on a port that stays the same when it is started again."""

    data: Path
    public_url: str
    port: int
    environment: Mapping[str, str] = field(default_factory=dict)
    lease_s: float = LEASE_S
    process: subprocess.Popen[bytes] = field(init=False)

    @property
    def url(self) -> str:
        """Without any proxy."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start, and wait until it answers."""
        command = [sys.executable, "-m", "giornata", "server", "--port", str(self.port), "--data", str(self.data)]
        command += ["--public-url", self.public_url, "--lease", str(self.lease_s)]
        told = {**CLEAN, **self.environment}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=told, cwd=self.data)
        until(self._is_ready, f"the server\n{self.log.read_text()[-2000:]}")

    @property
    def log(self) -> Path:
        """What it has said."""
        return self.data / "server.log"

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()[-4000:]
        with suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/readyz", timeout=5).is_success
        return False

    def kill(self) -> None:
        """SIGKILL; its sockets are free afterwards."""
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        self.process.terminate()
        return self.process.wait(PATIENCE_S)


@dataclass(kw_only=True)
class RunningNode:
    """One node; the agent and whatever it starts carry `mark`."""

    machine_id: str
    mark: str
    work_dir: Path
    log: Path
    process: subprocess.Popen[bytes]

    def engine_pid(self) -> int:
        """The engine that runs now."""
        return until(lambda: next(iter(self._engines()), 0), "an engine")

    def _engines(self) -> list[int]:
        return [pid for pid, line in marked(self.mark).items() if pid != self.process.pid and "node.py" not in line]

    def signal_agent(self, number: signal.Signals) -> None:
        """To the agent alone."""
        self.process.send_signal(number)

    def kill_engine(self) -> None:
        """SIGKILL to the engine alone."""
        os.kill(self.engine_pid(), signal.SIGKILL)

    def kill_all(self) -> None:
        """SIGKILL to the agent, and to all that it started, in one go."""
        for pid in marked(self.mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)

    def is_gone(self) -> bool:
        """Whether nothing of it runs."""
        return self.process.poll() is not None and not marked(self.mark)

    def end(self) -> None:
        """SIGTERM, which an idle node obeys at once."""
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        self.process.wait(PATIENCE_S)


def free_port() -> int:
    """A port that nobody listens on at the moment."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
