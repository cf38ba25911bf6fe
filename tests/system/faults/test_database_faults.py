"""PostgreSQL killed under load, and two servers on it, of which one is killed at random."""

import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.system.faults.postgres_victim import PostgresVictim, running_postgres
from tests.system.faults.processes import RunningServer, free_port
from tests.system.faults.rig import Rig, running_rig
from tests.system.faults.scenario import GatedJob
from tests.system.faults.setup import InstallationSetup

JOBS = 4
KILLS = 4
BETWEEN_KILLS_S = 1.5
# Steps of 40 ms make jobs that last longer than the pauses between kills.
STEP_S = 0.04
# While nothing can be committed the engine goes on, so that all of its way may have to be gone again.
CADENCES_AT_RISK = 3


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresVictim]:
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory, postgres: PostgresVictim) -> Iterator[Rig]:
    with running_rig(tmp_path_factory.mktemp("rig"), InstallationSetup(database=postgres.url)) as running:
        yield running


@pytest.fixture
def replica(rig: Rig, tmp_path: Path) -> Iterator[RunningServer]:
    """Another server on the same database and the same storage."""
    port = free_port()
    same = {**rig.setup.environment(rig.storage.url), "GIORNATA_BLOBS": f"file://{rig.server.data / 'blobs'}"}
    server = RunningServer(data=tmp_path, public_url=f"http://127.0.0.1:{port}", port=port, environment=same)
    server.start()
    yield server
    assert server.stop() == 0


def some_jobs(rig: Rig) -> list[GatedJob]:
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


def test_jobs_survive_random_kills_of_either_of_two_servers(rig, replica):
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
