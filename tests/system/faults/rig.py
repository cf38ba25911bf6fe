"""A server and nodes in processes of their own, with a chaos proxy before each way that a node takes to the server.

    client ──────────────────────────► server
    node ── control proxy ───────────►   │      (claim, heartbeat, commit, complete, …)
      └──── storage proxy ───────────►   │      (PUT and GET by signed URL)

Everything waits by polling, with a deadline. `Rig.close` ends all of it and says what was left behind.
"""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from tests.fixtures.chaos_proxy import ChaosProxy, chaos_proxy
from tests.system.conftest import MARK, marked, until

from giornata.agent.workplace import Workplace
from giornata.cli.composition import open_house
from giornata.cli.settings import Settings
from giornata.client import Client
from giornata.control.collect import collect
from giornata.domain.job import JobState
from giornata.protocol.admin import Scope
from giornata.protocol.jobs import Attempt, Job
from giornata.store import schema

SCRIPTS = Path(__file__).parents[1] / "scripts"
KIND = "x-gate"
ENGINE = (sys.executable, str(SCRIPTS / "gate_engine.py"))
LEASE_S = 2.0
STEPS, CADENCE = 30, 10
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("GIORNATA_", MARK))}


@dataclass(kw_only=True)
class RunningServer:
    """`giornata server` on a port that stays the same when it is started again."""

    data: Path
    public_url: str
    port: int
    flags: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] = field(init=False)

    @property
    def url(self) -> str:
        """Without any proxy."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start, and wait until it answers."""
        command = [sys.executable, "-m", "giornata", "server", "--port", str(self.port), "--data", str(self.data)]
        command += ["--public-url", self.public_url, "--lease", str(LEASE_S), *self.flags]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=CLEAN, cwd=self.data
            )
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
        self.process.wait(30)

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        self.process.terminate()
        return self.process.wait(60)


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
        self.process.wait(30)

    def is_gone(self) -> bool:
        """Whether nothing of it runs."""
        return self.process.poll() is not None and not marked(self.mark)

    def end(self) -> None:
        """SIGTERM, which an idle node obeys at once."""
        with suppress(ProcessLookupError):
            self.process.terminate()
        self.process.wait(60)


class Scenario:
    """One job of kind x-gate and the gates on its way."""

    def __init__(self, rig: "Rig", folder: Path) -> None:
        self.rig, self.salt = rig, secrets.token_hex(4)
        self.gates = folder / "gates"
        self.gates.mkdir(parents=True)
        self.trace = folder / "trace"
        self.job_id = ""

    def stop_at(self, gate: str, act: str = "wait") -> None:
        """Have the engine stop, or misbehave, at that gate."""
        aside = self.gates / f".{gate}"
        aside.write_text(act)
        aside.rename(self.gates / f"{gate}.stop")

    def is_at(self, gate: str) -> bool:
        """Whether an engine has come to the gate."""
        return (self.gates / f"{gate}.here").exists()

    def forget(self, gate: str) -> None:
        """Whoever stands at the gate does not count: the next to be waited for is another engine."""
        (self.gates / f"{gate}.here").unlink()

    def await_gate(self, gate: str) -> None:
        """Wait until an engine has come to the gate."""
        until(lambda: self.is_at(gate), f"the engine at {gate}\n{self.rig.story(self.job_id)}", 30)

    def open(self, *gates: str) -> None:
        """Let the engine go on; all gates when none is named."""
        for gate in gates or [each.stem for each in self.gates.glob("*.stop")]:
            (self.gates / f"{gate}.stop").unlink(missing_ok=True)

    def submit(self, **more: Any) -> str:
        """The job's id."""
        spec = {"steps": STEPS, "every": CADENCE, "salt": self.salt}
        spec |= {"gates": str(self.gates), "trace": str(self.trace), **more}
        self.job_id = self.rig.client.submit(spec, kind=KIND).id
        return self.job_id

    def run_to(self, gate: str, **more: Any) -> None:
        """Submit, and wait until the engine stands at a gate behind step 10, whose checkpoint is safe."""
        self.stop_at("written-10")
        self.stop_at(gate)
        self.submit(**more)
        self.await_gate("written-10")
        self.await_committed(10)
        self.open("written-10")
        self.await_gate(gate)

    def await_committed(self, step: int) -> None:
        """Wait until the checkpoint of that step is safe."""
        client = self.rig.client
        until(
            lambda: client.get_job(self.job_id).committed_step >= step,
            f"step {step} to be safe\n{self.rig.story(self.job_id)}",
        )

    def finish(self, *, cadences: int = 1) -> Job:
        """Wait for the end; the job has to be what it would have been without any trouble.

        Each interruption may have cost the steps of so many `cadences`.
        """
        done = self.rig.client.wait(self.job_id, timeout_s=60.0, poll_s=0.1)
        assert done.state is JobState.SUCCEEDED, self.rig.story(self.job_id)
        with httpx.Client() as http:
            (artifact,) = self.rig.client.artifacts(self.job_id)
            content = http.get(artifact.request.url.replace(self.rig.storage.url, self.rig.server.url)).content
        assert content.decode() == counted(STEPS, self.salt)
        assert done.step == done.committed_step == STEPS
        assert all(each.ended_at is not None for each in done.attempts), self.rig.story(self.job_id)
        assert self.repeated() <= cadences * CADENCE * (len(done.attempts) - 1), self.rig.story(self.job_id)
        return done

    def safe(self) -> list[tuple[int, int, str]]:
        """Step, attempt and sha256 of each checkpoint."""
        return [(each.step, each.attempt, each.sha256) for each in self.rig.client.checkpoints(self.job_id)]

    def repeated(self) -> int:
        """Steps that were counted more than once."""
        steps = [int(line.split()[1]) for line in self.trace.read_text().splitlines()]
        assert set(steps) == set(range(1, STEPS + 1))
        return len(steps) - STEPS


def counted(steps: int, salt: str) -> str:
    """What the engine writes when it neither missed a number nor counted one twice."""
    total = 0
    for step in range(1, steps + 1):
        total = (total * 31 + step) % 2**61
    return f"{steps} {total} {salt}\n"


class Rig:
    """One installation under attack. `node` is the one that lives; `replace` starts its successor."""

    def __init__(self, folder: Path, stack: ExitStack, *, database: str | None = None) -> None:
        self.folder, self.database = folder, database
        port = free_port()
        self.control = stack.enter_context(chaos_proxy(port))
        self.storage = stack.enter_context(chaos_proxy(port))
        data = folder / "server"
        data.mkdir()
        flags = () if database is None else ("--database", database)
        self.server = RunningServer(data=data, public_url=self.storage.url, port=port, flags=flags)
        self.nodes: list[RunningNode] = []
        self._scenarios = 0

    def start(self) -> None:
        """The server, and the keys that it gives out."""
        self.server.start()
        self.client = Client(self.server.url, (self.server.data / "admin.key").read_text().strip())
        self.node_key = self.client.create_key(scope=Scope.NODE).secret

    @property
    def node(self) -> RunningNode:
        """The node that was started last."""
        return self.nodes[-1]

    def proxies(self) -> tuple[ChaosProxy, ChaosProxy]:
        """Both."""
        return self.control, self.storage

    def scenario(self) -> Scenario:
        """A job to come, with fresh gates and one node; nothing that a test before has left is in its way."""
        for proxy in self.proxies():
            proxy.clear()
        for gates in self.folder.glob("scenario-*/gates"):
            shutil.rmtree(gates)
        for other in self.nodes[:-1]:
            other.kill_all()
        if not self.nodes or self.node.process.poll() is not None:
            self.start_node()
        self._scenarios += 1
        return Scenario(self, self.folder / f"scenario-{self._scenarios}")

    def scenario_on(self, node: RunningNode) -> Scenario:
        """The same, for a node that was not started last."""
        self.nodes.remove(node)
        self.nodes.append(node)
        return self.scenario()

    def start_node(
        self,
        *,
        engine: tuple[str, ...] = ENGINE,
        work_dir: Path | None = None,
        prefix: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> RunningNode:
        """Another node, on a machine of its own. It is not waited for."""
        number = len(self.nodes)  # none is ever taken away
        machine_id, mark = f"machine-{number}", secrets.token_hex(12)
        work_dir = work_dir or self.folder / f"node-{number}"
        given = {
            **{"url": self.control.url, "key": self.node_key, "machine_id": machine_id, "name": machine_id},
            **{"work_dir": str(work_dir), "kinds": [], "workloads": {KIND: engine}},
            **{"stop_grace_s": 1.0, "transfer_patience_s": 20.0, "fail_drain_s": 5.0},
            **{"claim_wait_s": 1.0, **settings},
        }
        log = self.folder / f"node-{number}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*prefix, sys.executable, str(SCRIPTS / "node.py"), json.dumps(given)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**CLEAN, **(environment or {}), MARK: mark},
                start_new_session=True,
            )
        node = RunningNode(machine_id=machine_id, mark=mark, work_dir=work_dir, log=log, process=process)
        self.nodes.append(node)
        return node

    def await_end_on(self, job_id: str, node: RunningNode) -> Attempt:
        """The attempt of that node, once it has ended."""

        def ended() -> Attempt | None:
            attempts = self.client.get_job(job_id).attempts
            mine = [each for each in attempts if each.machine_id == node.machine_id and each.ended_at is not None]
            return mine[-1] if mine else None

        return until(ended, f"the end of an attempt on {node.machine_id}\n{self.story(job_id)}", 30)

    def story(self, job_id: str) -> str:
        """What is known of a job, for whoever reads a failure."""
        if not job_id:
            return ""
        job = self.client.get_job(job_id)
        lines = [f"{job.state} at step {job.step}, committed {job.committed_step}: {job.error}"]
        lines += [f"  {each.number} on {each.machine_id}: {each.reason}, {each.message}" for each in job.attempts]
        machines = {each.machine_id for each in job.attempts} | {self.node.machine_id}
        for node in self.nodes:
            if node.machine_id in machines:
                lines += [f"--- {node.machine_id}", *node.log.read_text(errors="replace").splitlines()[-25:]]
        return "\n".join(lines)

    # ---- the end ----

    def close(self) -> list[str]:
        """End everything; what it left behind and should not have."""
        for proxy in self.proxies():
            proxy.clear()
        left = [f"{node.machine_id} ended with {code}" for node in self.nodes if (code := _ended(node)) not in FINE]
        left += [f"process {line}" for node in self.nodes for line in marked(node.mark).values()]
        self.client.close()
        code = self.server.stop()
        left += [] if code == 0 else [f"the server ended with {code}"]
        for work_dir in {node.work_dir for node in self.nodes if node.work_dir.is_relative_to(self.folder)}:
            left += left_on_disk(work_dir)
        return left + self._left_in_storage()

    def _left_in_storage(self) -> list[str]:
        """Leases, uploads and bytes that are still there once the garbage was collected."""
        settings = Settings(data=self.server.data, database=self.database, garbage_after_s=0)
        with open_house(settings, base_url=lambda: self.server.url) as house:
            collect(house.context)
            again = collect(house.context)
            left = [f"garbage after collecting: {again}"] if again else []
            with house.context.store.read() as tx:
                ask = tx.connection.execute
                open_attempts = sa.select(schema.attempts.c.id).where(schema.attempts.c.ended_at_ms.is_(None))
                left += [f"attempt {row.id} has not ended" for row in ask(open_attempts)]
                left += [f"upload {row.id}" for row in ask(sa.select(schema.uploads.c.id))]
                known = {row.key for row in ask(sa.select(schema.blobs.c.key))}
                hashes = {row.sha256 for row in ask(sa.select(schema.blobs.c.sha256))}
                wanted = {row.sha256 for table in REFERRERS for row in ask(sa.select(table.c.sha256))}
        root = self.server.data / "blobs"
        files = [path for path in root.rglob("*") if path.is_file()]
        left += [f"{path} is in storage" for path in files if not any(str(path).endswith(key) for key in known)]
        left += [f"{len(files)} files for {len(known)} blobs"] if len(files) != len(known) else []
        return left + [f"blob {sha256} belongs to nobody" for sha256 in hashes ^ wanted]


REFERRERS = (schema.dataset_items, schema.checkpoints, schema.artifacts, schema.caches)
# Made unusable or killed by a test, or told to leave before it had begun to listen.
UNUSABLE = 78
FINE = {0, UNUSABLE, -signal.SIGKILL, -signal.SIGTERM}


def _ended(node: RunningNode) -> int:
    if node.process.poll() is None:
        node.process.send_signal(signal.SIGCONT)
        node.process.terminate()
    try:
        return node.process.wait(60)
    except subprocess.TimeoutExpired:
        node.kill_all()
        return 1


def left_on_disk(work_dir: Path) -> list[str]:
    """Files besides the cache's, once the next process of the node has been there."""
    Workplace(work_dir).close()
    hidden = [path for path in (work_dir / "cache").rglob(".*") if path.is_file()]
    others = [path for path in work_dir.rglob("*") if path.is_file() and work_dir / "cache" not in path.parents]
    return [f"{path} is on the node's disk" for path in (*hidden, *others)]


def free_port() -> int:
    """A port that nobody listens on at the moment."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def running_rig(folder: Path, *, database: str | None = None) -> Iterator[Rig]:
    """A rig for a module; at its end nothing may be left behind."""
    with ExitStack() as stack:
        rig = Rig(folder, stack, database=database)
        rig.start()
        try:
            yield rig
        except BaseException:
            _kill_everything(rig)
            raise
        left = rig.close()
        _kill_everything(rig)
        if left:
            pytest.fail("left behind:\n" + "\n".join(left))


def _kill_everything(rig: Rig) -> None:
    rig.server.kill()
    for node in rig.nodes:
        node.kill_all()
