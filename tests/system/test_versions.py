"""Version N−1 beside this one: its node on this server, and its server beside this one on one PostgreSQL.

The last release runs from its own source (tests/fixtures/earlier_release.py) in processes of its own.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

import httpx
import pytest
from tests.fixtures.earlier_release import changed_pins, earlier_release
from tests.fixtures.postgres import empty_postgres, postgres_server  # noqa: F401 - fixtures
from tests.system.conftest import SECRETS_KEY, until
from tests.system.faults.ordered_pictures import OrderedPictures
from tests.system.faults.processes import LONG_LEASE_S, RunningServer, free_port
from tests.system.faults.rig import Rig, running_rig
from tests.system.faults.setup import PATIENT

from giornata.client import Client
from giornata.client.node import NodeClient
from giornata.client.trust import trusted
from giornata.protocol.node.work import Claim, CompleteAttempt, Heartbeat, NodeInfo
from giornata.protocol.project.admin import Scope


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a process has in its environment to be of the last release."""
    return {"PYTHONPATH": str(earlier_release(tmp_path_factory.mktemp("earlier")))}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A server of this version, and the nodes that tests start."""
    with running_rig(tmp_path_factory.mktemp("rig"), PATIENT) as running:
        yield running


def test_earlier_environment_runs_the_earlier_source(earlier: dict[str, str], tmp_path: Path) -> None:
    asked = [sys.executable, "-c", "import giornata; print(giornata.__file__)"]
    said = subprocess.run(
        asked, env=os.environ | earlier, cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    assert said.startswith(earlier["PYTHONPATH"])


def test_the_last_release_pins_the_libraries_that_are_installed_here() -> None:
    """So its source in this environment is what an installation of it is. When a pin changes, give the last release
    an environment of its own in `earlier`.
    """
    assert changed_pins() == set()


def test_node_of_the_last_release_claims_commits_and_resumes_on_this_server(
    rig: Rig, earlier: dict[str, str]
) -> None:
    first = rig.start_node(environment=earlier)
    scenario = rig.scenario_on(first)
    scenario.run_to("step-15")
    first.kill_all()
    second = rig.start_node(environment=earlier)
    scenario.open()
    done = scenario.finish()
    assert [each.machine_id for each in done.attempts] == [first.machine_id, second.machine_id]
    assert done.attempts[-1].start_step == 10
    second.end()


def test_job_begun_on_a_node_of_the_last_release_goes_on_on_a_node_of_this_one(
    rig: Rig, earlier: dict[str, str]
) -> None:
    first = rig.start_node(environment=earlier)
    scenario = rig.scenario_on(first)
    scenario.run_to("step-15")
    first.kill_all()
    second = rig.start_node()
    scenario.open()
    done = scenario.finish()
    assert done.attempts[-1].start_step == 10
    second.end()


def test_node_of_the_last_release_draws_pictures_for_this_server(rig: Rig, earlier: dict[str, str]) -> None:
    node = rig.start_drawing_node(max_pictures=4, environment=earlier)
    OrderedPictures(rig, prompts=["a fox"] * 10).finish()
    node.end()


@contextmanager
def replica(data: Path, database: str, environment: dict[str, str]) -> Iterator[RunningServer]:
    """A server on the database that others are on, too."""
    data.mkdir()
    port, told = free_port(), {"GIORNATA_DATABASE": database, "GIORNATA_SECRETS_KEY": SECRETS_KEY, **environment}
    server = RunningServer(
        data=data, public_url=f"http://127.0.0.1:{port}", port=port, environment=told, lease_s=LONG_LEASE_S
    )
    server.start()
    try:
        yield server
    finally:
        server.stop()


class WorkingNode:
    """A node that claims jobs of kind `x-count` at one server and ends them at another."""

    numbers = count(1)

    def __init__(self, key: str, *, claims: httpx.Client, ends: httpx.Client) -> None:
        self._claims, self._ends = NodeClient(claims, node_key=key), NodeClient(ends, node_key=key)
        number = next(self.numbers)
        self._info = NodeInfo(node_id=f"node_{number:08}", machine_id=f"m-{number}", name="n")
        self.done: list[str] = []

    def work(self) -> None:
        """Claim a job, beat at both servers, and complete the job."""
        request = f"request-{self._info.node_id}-{len(self.done)}"
        lease = self._claims.claim(Claim(request_id=request, node=self._info, kinds=("x-count",), wait_s=5)).lease
        assert lease is not None
        self._ends.heartbeat(lease, Heartbeat(step=1))
        self._claims.heartbeat(lease, Heartbeat(step=2))
        self._ends.complete(lease, CompleteAttempt(step=3))
        self.done.append(lease.job_id)


def test_claims_go_on_while_a_server_of_this_version_joins_one_of_the_last_release(
    earlier: dict[str, str],
    tmp_path: Path,
    empty_postgres: Callable[[], str],  # noqa: F811
) -> None:
    database = empty_postgres()
    with ExitStack() as stack:
        old = stack.enter_context(replica(tmp_path / "old", database, earlier))
        admin = (old.data / "admin.key").read_text().strip()
        old_http = stack.enter_context(httpx.Client(base_url=old.url, verify=trusted(), timeout=60))
        old_client = stack.enter_context(Client(old.url, admin))
        key = old_client.create_key(scope=Scope.NODE).secret
        node, joined, troubles = WorkingNode(key, claims=old_http, ends=old_http), threading.Event(), []

        def work() -> None:
            try:
                while not joined.is_set():
                    old_client.submit({}, kind="x-count")
                    node.work()
            except Exception as trouble:  # noqa: BLE001 - told to the test's own thread
                troubles.append(trouble)

        worker = threading.Thread(target=work)
        worker.start()
        until(lambda: node.done or troubles, "the first job")
        try:
            new = stack.enter_context(replica(tmp_path / "new", database, {}))
        finally:
            joined.set()
            worker.join()
        assert troubles == []
        new_http = stack.enter_context(httpx.Client(base_url=new.url, verify=trusted(), timeout=60))
        new_client = stack.enter_context(Client(new.url, admin))
        for client, claims, ends in ((old_client, new_http, old_http), (new_client, old_http, new_http)):
            job = client.submit({}, kind="x-count")
            each = WorkingNode(key, claims=claims, ends=ends)
            each.work()
            assert each.done == [job.id]
            assert (old_client.get_job(job.id).state, new_client.get_job(job.id).state) == ("succeeded", "succeeded")
