"""A real `giornata up` in processes of its own. Waits by polling, always with a deadline."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest

from giornata.client import Client

T = TypeVar("T")

# Far more than anything takes: only what will never come is not waited for.
PATIENCE_S = 120.0
POLL_S = 0.05
MARK = "INSTALLATION_UNDER_TEST"
SECRETS_KEY = "c2VjcmV0cyBvZiB0ZXN0cyBhcmUgbm8gc2VjcmV0cyE="
COUNT_ENGINE = Path(__file__).parent / "scripts" / "count_engine.py"


def until(ask: Callable[[], T | None], what: str | Callable[[], str], patience_s: float = PATIENCE_S) -> T:
    """The first answer that is true. Fails the test when there is none in time, and says what was waited for."""
    deadline_s = time.monotonic() + patience_s
    while True:
        answer = ask()
        if answer:
            return answer
        if time.monotonic() > deadline_s:
            pytest.fail(f"waited {patience_s:g} s in vain for: {what if isinstance(what, str) else what()}")
        time.sleep(POLL_S)


@dataclass
class Up:
    """One `giornata up`. All that it starts, however indirectly, carries `mark` in its environment."""

    data: Path
    log: Path
    process: subprocess.Popen[bytes]
    mark: str
    url: str = field(init=False)
    client: Client = field(init=False)

    def connect(self) -> None:
        file = self.data / "server.json"
        until(lambda: file.exists() or self.process.poll() is not None, f"{file}\n{self.said()}")
        assert file.exists(), self.said()
        document = json.loads(file.read_text())
        assert document["pid"] == self.process.pid
        self.url = document["url"]
        self.client = Client(self.url, (self.data / "admin.key").read_text().strip())

    def said(self) -> str:
        """Standard output and error so far."""
        return self.log.read_text(errors="replace")

    def others(self) -> dict[int, str]:
        """Command lines of all other processes of this installation, by process id."""
        return {pid: line for pid, line in marked(self.mark).items() if pid != self.process.pid}

    def end(self) -> int:
        """SIGTERM, then wait; the exit status."""
        self.process.terminate()
        return self.process.wait(PATIENCE_S)


def marked(mark: str) -> dict[int, str]:
    """Every process with the mark in its environment, but for those that have ended."""
    return {pid: line for pid, line, environment in everybody() if mark.encode() in environment}


def everybody() -> Iterator[tuple[int, str, bytes]]:
    """Process id, command line and environment of everything that runs."""
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            with suppress(OSError):
                environment = (directory / "environ").read_bytes()
                line = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                yield int(directory.name), line, environment


@pytest.fixture
def start_up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    """Starts installations: `start_up("--nodes", "2", data=…)`. None may leave a process behind."""
    started: list[Up] = []

    def start(
        *arguments: str, data: Path | None = None, connect: bool = True, umask: int = -1, **environment: str
    ) -> Up:
        data, number = data or tmp_path / "data", len(started)
        mark = f"{MARK}={uuid.uuid4().hex}"
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("GIORNATA_", MARK))}
        log = tmp_path / f"up-{number}.log"
        command = [sys.executable, "-m", "giornata", "up", "--port", "0", "--data", str(data)]
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*command, "--workload", f"x-count={sys.executable} {COUNT_ENGINE}", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=tmp_path,
                env=clean | environment | dict([mark.split("=")]),
                start_new_session=True,
                umask=umask,
            )
        up = Up(data=data, log=log, process=process, mark=mark)
        started.append(up)
        if connect:
            up.connect()
        return up

    yield start
    left = {}
    for up in started:
        if up.process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                up.end()
        left |= marked(up.mark)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert not left, f"left behind: {left}"
