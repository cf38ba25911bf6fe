"""A real `giornata up` in a process of its own, for as long as the demo lasts."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from giornata.cli.demo_plan import LEASE_S, NODES, PRICE_USD_PER_HOUR, Plan
from giornata.cli.settings.connection import ADMIN_KEY_FILE, SERVER_FILE
from giornata.client import Backoff, Client
from giornata.domain.errors import GiornataError, Unavailable
from giornata.protocol.admin import Node

START_S = 120.0
STOP_S = 45.0
POLL_S = 0.1
LAST_WORDS = 3
BACKOFF = Backoff(retries=5)
"""The server is on this machine: it answers soon, or not at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """Server and nodes, and a client with the installation's own key."""

    process: subprocess.Popen[bytes]
    log: Path
    client: Client

    def check(self) -> None:
        """Raises GiornataError, with its last words, when it has ended."""
        _check(self.process, self.log)


@contextmanager
def running(plan: Plan, *, environment: Mapping[str, str]) -> Iterator[Callable[[], Installation]]:
    """Start the installation; the function that is given waits until it can be used. Ends everything on the way out.

    Raises GiornataError when it does not come up, or does not stay up.
    """
    process = _start(plan, environment)
    client: Client | None = None

    def ready() -> Installation:
        nonlocal client
        _wait_for(plan.data / SERVER_FILE, process, plan.log)
        url = json.loads((plan.data / SERVER_FILE).read_text())["url"]
        client = Client(url, (plan.data / ADMIN_KEY_FILE).read_text().strip(), backoff=BACKOFF)
        return Installation(process=process, log=plan.log, client=client)

    try:
        yield ready
    except Unavailable:
        _check(process, plan.log)  # which says more than that nobody answers
        raise
    finally:
        if client is not None:
            client.close()
        _stop(process)


def kill_node(node: Node) -> None:
    """Kill the agent and the engine of a node on this machine at once, as a vanished machine would be gone.

    Raises GiornataError when the node does not say which processes it is.
    """
    if node.pid is None:
        raise GiornataError(f"node {node.name} does not say which process it is")
    for pid in (node.pid, node.engine_pid):
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def own_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without the user's settings of Giornata, which are about another installation."""
    kept = {name: value for name, value in environment.items() if not name.startswith("GIORNATA_")}
    # The tiny model is quicker on a CPU, and all machines have one.
    return kept | {"GIORNATA_DEVICE": "cpu", "OMP_NUM_THREADS": "1"}


def _start(plan: Plan, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "giornata", "up", "--nodes", str(NODES), "--port", "0"]
    command += ["--data", str(plan.data), "--price", str(PRICE_USD_PER_HOUR), "--lease", str(LEASE_S)]
    with plan.log.open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=plan.out,  # where no giornata.toml of the user's lies
            env=own_environment(environment),
            start_new_session=True,  # Ctrl-C is for the demo, which then ends it in good order
        )


def _wait_for(file: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + START_S
    while not file.exists():
        _check(process, log)
        if time.monotonic() > deadline_s:
            raise GiornataError(f"giornata up did not start within {START_S:g} s")
        time.sleep(POLL_S)


def _check(process: subprocess.Popen[bytes], log: Path) -> None:
    status = process.poll()
    if status is not None:
        words = log.read_text(errors="replace").strip().splitlines()[-LAST_WORDS:]
        raise GiornataError(f"giornata up ended with status {status}: {' / '.join(words)}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM lets the nodes finish; they follow their parent when it has to be killed."""
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
