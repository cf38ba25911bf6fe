"""Ray clusters of several nodes on this machine, as `ray start` makes them."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from ray._raylet import GcsClient
from ray.core.generated import autoscaler_pb2

ACCELERATOR = "SPOT"
"""What nodes for trainers are said to have: encoders, and whatever reads data, find room on the first node only."""
PATIENCE_S = 900.0
RAYS_OWN = tuple(
    f"ray::{name}"
    for name in ("IDLE", "DashboardAgent", "RuntimeEnvAgent", "_StatsActor", "_AutoscalingCoordinatorActor")
)
"""The last two are Ray Data's, made once for a cluster."""
STORE_BYTES = 150 << 20


@dataclass(frozen=True, slots=True)
class RayNode:
    """`ray start --block`; what it starts ends with it."""

    process: "subprocess.Popen[bytes]"
    name: str
    kind: str | None = None

    def kill(self) -> None:
        """As a machine that is taken away."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def at_work(self) -> dict[int, str]:
        """Ray's processes here that carry something out, by their ids; without Ray's own, which stay."""
        found = {}
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                line = " ".join(process.cmdline()).strip()
                if line.startswith("ray::") and not line.startswith(RAYS_OWN):
                    found[process.pid] = line
        return found


class RayCluster:
    """A first node with room for data, and nodes for trainers or encoders that come and go."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._nodes = folder, list[RayNode]()
        self._port, self._dashboard_port, self._client_port = free_port(), free_port(), free_port()
        self.address, self.dashboard = f"127.0.0.1:{self._port}", f"http://127.0.0.1:{self._dashboard_port}"

    def begin(self) -> None:
        """The first node."""
        ports = {"": self._port, "dashboard-": self._dashboard_port, "ray-client-server-": self._client_port}
        words = [f"--{name}port={port}" for name, port in ports.items()]
        self._start("head", "--head", "--num-cpus=8", f"--temp-dir={self._folder}", *words)
        self._gcs = GcsClient(address=self.address)

    def add(self, *, cpus: int = 1, kind: str = ACCELERATOR) -> RayNode:
        """So many more trainers or encoders have room, that want this kind of accelerator."""
        resources = f'{{"accelerator_type:{kind}": 1}}'
        words = (f"--address={self.address}", f"--num-cpus={cpus}", f"--resources={resources}")
        return self._start(f"node-{len(self._nodes)}", *words, kind=kind)

    def rooms(self) -> int:
        """For how many trainers there is room now, one on a node."""
        return sum(node.kind == ACCELERATOR and node.process.poll() is None for node in self._nodes)

    def announce_end(self, node: RayNode, *, in_s: float) -> None:
        """What an autoscaler tells Ray when a cloud gives notice."""
        accepted, why = self._gcs.drain_node(
            self._ids()[node.name],
            autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION"),
            "for a test",
            int((time.time() + in_s) * 1000),
        )
        assert accepted, why

    def at_work(self) -> dict[int, str]:
        """On the first node."""
        return self._nodes[0].at_work()

    def end(self) -> None:
        """All nodes, the first one last."""
        for node in reversed(self._nodes):
            if node.process.poll() is None:
                node.kill()

    def _start(self, name: str, *words: str, kind: str | None = None) -> RayNode:
        ray = Path(sys.executable).with_name("ray")
        # Ends with the tests even when they are killed, where setpriv is installed.
        bound = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        log = self._folder / f"{name}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [
                    *bound,
                    ray,
                    "start",
                    "--block",
                    f"--node-name={name}",
                    f"--object-store-memory={STORE_BYTES}",
                    *PORTS,
                    *words,
                ],
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        node = RayNode(process, name, kind)
        self._nodes.append(node)
        by_s = time.monotonic() + PATIENCE_S
        while "Ray runtime started" not in log.read_text(errors="replace"):
            assert process.poll() is None, log.read_text(errors="replace")
            assert time.monotonic() < by_s, f"{name} did not start"
            time.sleep(0.1)
        return node

    def _ids(self) -> dict[str, str]:
        """Name to id."""
        return {info.node_name: key.hex() for key, info in self._gcs.get_all_node_info().items()}


ENVIRONMENT = {"RAY_AUTH_MODE": "disabled", "RAY_memory_monitor_refresh_ms": "0"}
"""`ray start` would want a token; so would `ray.init`, which says so to every process begun after it. Ray kills its
workers where a machine has little memory left, whoever took it: here that may be other programs."""
PORTS = (
    "--node-ip-address=127.0.0.1",
    "--min-worker-port=0",
    "--max-worker-port=0",
    "--dashboard-agent-listen-port=0",
    "--dashboard-agent-grpc-port=0",
    "--disable-usage-stats",
)
"""Whichever are free."""


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


@contextmanager
def ray_cluster(folder: Path) -> Iterator[RayCluster]:
    """Until the end of the block, in which every process that is begun can speak to it. The folder's path is short:
    sockets lie below it."""
    cluster = RayCluster(folder)
    with pytest.MonkeyPatch.context() as environment:
        for name, value in ENVIRONMENT.items():
            environment.setenv(name, value)
        try:
            cluster.begin()
            yield cluster
        finally:
            cluster.end()
