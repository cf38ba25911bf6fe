"""A node in the test's own thread, with a real engine process and a server that the test steers."""

import functools
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.agent.fake_node_api import FakeNodeApi

from giornata.agent.agent import Agent
from giornata.agent.attempt.commands import ShutdownSignal
from giornata.agent.machine.machine_checks import Provider
from giornata.agent.machine.node_probes import NodeProbes
from giornata.agent.main import launch
from giornata.agent.settings import AgentSettings
from giornata.agent.transfer.transport import HttpStorage
from giornata.client.node import NodeClient

SCRIPTS = Path(__file__).parents[2] / "system" / "scripts"
COUNT_ENGINE = SCRIPTS / "count_engine.py"
DRAW_ENGINE = SCRIPTS / "draw_engine.py"

NodeFactory = Callable[..., "AgentNode"]


class AgentNode:
    """An agent, and what a test wants to reach of it. `naps` holds how long it wanted to wait between tries."""

    def __init__(
        self,
        api: FakeNodeApi,
        work_dir: Path,
        workloads: dict[str, tuple[str, ...]],
        *,
        probes: NodeProbes | None = None,
        provider: Provider | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
        **settings: Any,
    ) -> None:
        self.api, self.work_dir = api, work_dir
        self.shutdown = ShutdownSignal()
        self.naps: list[float] = []
        fields: dict[str, Any] = {
            "url": "http://server",
            "key": "node-key",
            "machine_id": "m-1",
            "name": "test",
            "work_dir": work_dir,
            "kinds": (),
            "workloads": workloads,
            "claim_wait_s": 0.0,
            "stop_grace_s": 5.0,
            "hello_s": 20.0,
        } | settings
        self.settings = AgentSettings(**fields)
        self.http = api.client()
        self.agent = Agent(
            settings=self.settings,
            node=NodeClient(self.http, node_key="node-key"),
            storage=HttpStorage(self.http),
            launch=functools.partial(launch, environment=os.environ, threads=1, clock_s=monotonic_s),
            shutdown=self.shutdown,
            monotonic_s=monotonic_s,
            rng=random.Random(7),
            sleep=self.naps.append,
            probes=probes,
            provider=provider,
        )

    def run(self) -> int:
        return self.agent.run()

    def left_behind(self) -> list[str]:
        """What is still in the work directory, but for what leases share."""
        return [path.name for path in self.work_dir.iterdir() if path.name not in {"cache", "compiled", "models"}]


@pytest.fixture
def api() -> FakeNodeApi:
    return FakeNodeApi()


@pytest.fixture
def node(api: FakeNodeApi, tmp_path: Path) -> Iterator[NodeFactory]:
    """Makes a node. `script` is the text of an engine of the test's own; without, the engine counts."""
    made: list[AgentNode] = []

    def make(*, script: str | None = None, **settings: Any) -> AgentNode:
        path = COUNT_ENGINE
        if script is not None:
            path = tmp_path / "engine.py"
            path.write_text(PRELUDE + script)
        workloads = settings.pop("workloads", {"x-count": (sys.executable, str(path))})
        made.append(AgentNode(api, tmp_path / "work", workloads, **settings))
        return made[-1]

    yield make
    for each in made:
        each.agent.engines.stop()
        each.http.close()


@pytest.fixture
def drawing(node: NodeFactory) -> NodeFactory:
    """Makes a node that draws pictures, without a model."""

    def make(**settings: Any) -> AgentNode:
        of_pictures = {"kinds": ("generate",), "workloads": {}, "engine": (sys.executable, str(DRAW_ENGINE))}
        return node(**of_pictures | settings)

    return make


PRELUDE = """
import json, os, sys
def say(type, **fields):
    print(json.dumps({"type": type, **fields}), flush=True)
def hear():
    line = sys.stdin.readline()
    if not line:
        os._exit(0)
    return json.loads(line)
def hello(protocol=1):
    say("hello", protocol=protocol, pid=os.getpid(), kinds=["x-count"])
"""
