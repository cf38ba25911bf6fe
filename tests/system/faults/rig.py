"""A server and nodes in processes of their own, with a chaos proxy before each way that a node takes to the server.

    client ──────────────────────────► server
    node ── control proxy ───────────►   │      (claim, heartbeat, commit, complete, …)
      └──── storage proxy ───────────►   │      (PUT and GET by signed URL)

Everything waits by polling, with a deadline. `Rig.close` ends all of it and says what was left behind.
"""

import json
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.chaos_proxy import ChaosProxy, chaos_proxy
from tests.system.conftest import MARK, PATIENCE_S, everybody, marked, until
from tests.system.faults.leftovers import left_in_storage, left_on_disk
from tests.system.faults.processes import CLEAN, RunningNode, RunningServer, free_port
from tests.system.faults.scenario import KIND, GatedJob
from tests.system.faults.setup import EMBEDDED, InstallationSetup, StoredBytes

from giornata.agent.settings import BUILT_IN
from giornata.client import Client
from giornata.protocol.jobs import Attempt
from giornata.protocol.project.admin import Scope

SCRIPTS = Path(__file__).parents[1] / "scripts"
ENGINE = (sys.executable, str(SCRIPTS / "gate_engine.py"))
DRAW_ENGINE = (sys.executable, str(SCRIPTS / "draw_engine.py"))
# Made unusable or killed by a test, or told to leave before it had begun to listen.
UNUSABLE = 78
FINE = {0, UNUSABLE, -signal.SIGKILL, -signal.SIGTERM}


class Rig:
    """One installation under attack. `node` is the one that lives; `start_node` starts another."""

    def __init__(self, folder: Path, stack: ExitStack, setup: InstallationSetup) -> None:
        self.folder, self.setup = folder, setup
        port = free_port()
        self.control = stack.enter_context(chaos_proxy(port))
        self.storage = stack.enter_context(chaos_proxy(port if setup.bucket is None else setup.bucket.port))
        data = folder / "server"
        data.mkdir()
        self.server = RunningServer(
            data=data,
            public_url=self.storage.url,
            port=port,
            # A job waits for the node that a test starts next, however long that node takes to come.
            environment={**setup.environment(self.storage.url), "GIORNATA_RETRY_PAUSE_S": "600"},
            lease_s=setup.lease_s,
        )
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

    @property
    def bytes(self) -> StoredBytes:
        """What is in storage, past every API."""
        return self.setup.storage(self.server.data)

    def proxies(self) -> tuple[ChaosProxy, ChaosProxy]:
        """Both."""
        return self.control, self.storage

    def scenario(self) -> GatedJob:
        """A job to come, with fresh gates and one node; nothing that a test before has left is in its way."""
        for proxy in self.proxies():
            proxy.clear()
        for gates in self.folder.glob("scenario-*/gates"):
            shutil.rmtree(gates)
        for other in self.nodes[:-1]:
            # Not killed: a claim of a dead node that still waits would get the job to come.
            other.end()
        if not self.nodes or self.node.process.poll() is not None:
            self.start_node()
        self._scenarios += 1
        return GatedJob(self, self.folder / f"scenario-{self._scenarios}")

    def scenario_on(self, node: RunningNode) -> GatedJob:
        """The same, for a node that was not started last."""
        self.nodes.remove(node)
        self.nodes.append(node)
        return self.scenario()

    def start_node(
        self,
        *,
        engine: tuple[str, ...] = ENGINE,
        built_in: tuple[str, ...] = BUILT_IN,
        work_dir: Path | None = None,
        prefix: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> RunningNode:
        """Another node, on a machine of its own. It is not waited for. `built_in` is what its built-in engine is."""
        number = len(self.nodes)  # none is ever taken away
        machine_id, mark = f"machine-{number}", secrets.token_hex(12)
        work_dir = work_dir or self.folder / f"node-{number}"
        given = {
            **{"url": self.control.url, "key": self.node_key, "machine_id": machine_id, "name": machine_id},
            **{"work_dir": str(work_dir), "kinds": [], "workloads": {KIND: engine}, "engine": built_in},
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

    def start_drawing_node(self, **settings: Any) -> RunningNode:
        """Another node, which draws pictures without a model and takes no jobs."""
        return self.start_node(**{"kinds": ["generate"], "workloads": {}, "built_in": DRAW_ENGINE} | settings)

    def await_end_on(self, job_id: str, node: RunningNode) -> Attempt:
        """The attempt of that node, once it has ended."""

        def ended() -> Attempt | None:
            attempts = self.client.get_job(job_id).attempts
            mine = [each for each in attempts if each.machine_id == node.machine_id and each.ended_at is not None]
            return mine[-1] if mine else None

        return until(ended, lambda: f"the end of an attempt on {node.machine_id}\n{self.story(job_id)}")

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

    def orphans(self) -> list[str]:
        """Processes whose node has ended."""
        ended = [node.mark.encode() for node in self.nodes if node.process.poll() is not None]
        return [line for _, line, environment in everybody() if any(mark in environment for mark in ended)]

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
        return left + left_in_storage(self.server.data, self.setup)


def _ended(node: RunningNode) -> int:
    if node.process.poll() is None:
        node.process.send_signal(signal.SIGCONT)
        node.process.terminate()
    try:
        return node.process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        node.kill_all()
        return 1


@contextmanager
def running_rig(folder: Path, setup: InstallationSetup = EMBEDDED) -> Iterator[Rig]:
    """A rig for a module; at its end nothing may be left behind."""
    with ExitStack() as stack:
        rig = Rig(folder, stack, setup)
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
