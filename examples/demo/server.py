"""Runs `giornata up` in a process of its own for as long as the demo lasts."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from examples.demo.settings import LEASE_S, NODES, PRICE_USD_PER_HOUR, DemoSettings
from giornata.client import Backoff, Client
from giornata.domain.errors import GiornataError, Unavailable
from giornata.protocol.project.admin import Node

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 45.0
POLL_S = 0.1
LOG_LINES = 3
BACKOFF = Backoff(retries=5)
"""Few retries: a server on this machine answers soon, or not at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalServer:
    """A running `giornata up`, and a client with its administrator's key."""

    client: Client
    check: Callable[[], None]
    """Raises GiornataError with the last lines of the log when the process has ended."""


@contextmanager
def running_server(settings: DemoSettings, environment: Mapping[str, str]) -> Iterator[Callable[[], LocalServer]]:
    """Start `giornata up`, and yield a function that waits until the server answers. End every process on exit.

    Raises GiornataError when the process does not start, or ends early.
    """
    process = _start(settings, environment)
    client: Client | None = None

    def check() -> None:
        if (status := process.poll()) is not None:
            lines = settings.log.read_text(errors="replace").strip().splitlines()[-LOG_LINES:]
            raise GiornataError(f"giornata up ended with status {status}: {' / '.join(lines)}")

    def ready() -> LocalServer:
        nonlocal client
        file, deadline_s = settings.data / "server.json", time.monotonic() + START_TIMEOUT_S
        while not file.exists():
            check()
            if time.monotonic() > deadline_s:
                raise GiornataError(f"giornata up did not start within {START_TIMEOUT_S:g} s")
            time.sleep(POLL_S)
        key = (settings.data / "admin.key").read_text().strip()
        client = Client(json.loads(file.read_text())["url"], key, backoff=BACKOFF)
        return LocalServer(client=client, check=check)

    try:
        yield ready
    except Unavailable:
        check()  # Its error says more than that the server does not answer.
        raise
    finally:
        if client is not None:
            client.close()
        _stop(process)


def kill_node(node: Node) -> None:
    """Kill the agent and the engine of a node at once, as if its machine had vanished.

    Raises GiornataError when the node does not report its process.
    """
    if node.pid is None:
        raise GiornataError(f"node {node.name} does not report its process")
    for pid in (node.pid, node.engine_pid):
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def demo_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the user's settings of Giornata, which belong to another installation."""
    kept = {name: value for name, value in environment.items() if not name.startswith("GIORNATA_")}
    # The tiny model is faster on a CPU, and every machine has one.
    return kept | {"GIORNATA_DEVICE": "cpu", "OMP_NUM_THREADS": "1"}


def _start(settings: DemoSettings, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "giornata", "up", "--nodes", str(NODES), "--port", "0"]
    command += ["--data", str(settings.data), "--price", str(PRICE_USD_PER_HOUR), "--lease", str(LEASE_S)]
    with settings.log.open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=settings.out,  # A giornata.toml of the user must not apply.
            env=demo_environment(environment),
            start_new_session=True,  # Ctrl-C reaches the demo alone, which then stops the server in order.
        )


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server with SIGTERM, or with SIGKILL when it takes too long. Its nodes end with it."""
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
