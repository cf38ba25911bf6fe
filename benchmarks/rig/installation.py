"""A real `giornata up` in a process of its own, with nodes on this machine."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.rig.processes import tree_cpu_s
from giornata.client import Client

START_PATIENCE_S = 120.0
POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkInstallation:
    """A client with the administrator's key, and the process that all others come from."""

    client: Client
    pid: int

    def cpu_s(self) -> float:
        """CPU seconds so far of server, agents and engines."""
        return tree_cpu_s(self.pid)


@contextlib.contextmanager
def installation(data: Path, *, nodes: int) -> Iterator[BenchmarkInstallation]:
    """`giornata up` with so many nodes, until it is left."""
    command = [sys.executable, "-m", "giornata", "up", "--port", "0", "--data", str(data), "--nodes", str(nodes)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIORNATA_")}
    with (data.parent / "up.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=clean)
    try:
        file, ends_s = data / "server.json", time.monotonic() + START_PATIENCE_S
        while not file.exists():
            if process.poll() is not None or time.monotonic() > ends_s:
                sys.exit(f"the server did not start:\n{(data.parent / 'up.log').read_text()}")
            time.sleep(POLL_S)
        client = Client(json.loads(file.read_text())["url"], (data / "admin.key").read_text().strip())
        yield BenchmarkInstallation(client=client, pid=process.pid)
    finally:
        process.terminate()
        process.wait(START_PATIENCE_S)
