"""kill -9 of PostgreSQL at every phase of a job: of the whole of it, and of the processes that serve the server."""

import signal
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest
from tests.system.faults.phases import OVER, PHASES, await_reunion, go_on, stop_the_world
from tests.system.faults.postgres_victim import PostgresVictim, running_postgres
from tests.system.faults.rig import Rig, running_rig
from tests.system.faults.setup import InstallationSetup


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresVictim]:
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory, postgres: PostgresVictim) -> Iterator[Rig]:
    with running_rig(tmp_path_factory.mktemp("rig"), InstallationSetup(database=postgres.url)) as running:
        yield running


def _all_of_it(postgres: PostgresVictim) -> None:
    postgres.end(signal.SIGKILL)
    postgres.start_again()


def _its_backends(postgres: PostgresVictim) -> None:
    assert postgres.kill_backends() > 0


VICTIMS: dict[str, Callable[[PostgresVictim], None]] = {"all of it": _all_of_it, "its backends": _its_backends}


# All of it at every phase. Its backends end with it as well; alone they end where a request is on its way.
AT = [("all of it", phase) for phase in PHASES] + [
    ("its backends", phase) for phase in PHASES if PHASES[phase].trap is not None and not PHASES[phase].by_storage
]


@pytest.mark.parametrize(("victim", "phase"), AT)
def test_job_survives_kill_of_postgres_in_each_phase(rig, postgres, phase, victim):
    scenario = rig.scenario()
    trap = stop_the_world(rig, scenario, PHASES[phase])
    server = rig.server.process.pid
    VICTIMS[victim](postgres)
    up_at = datetime.now(UTC)
    if trap is not None:
        trap.release(cut=True)
    # What was acknowledged is still known; and the server needs no help to find its database again.
    assert rig.client.get_job(scenario.job_id).committed_step >= PHASES[phase].safe_step
    await_reunion(rig, scenario, up_at)
    go_on(scenario, trap, cut=True)
    # On a busy machine a lease runs out before the database is back: the checkpoint on its way goes with it.
    done = scenario.finish(cadences=2)
    assert (rig.server.process.pid, rig.server.process.poll()) == (server, None)
    assert rig.node.process.poll() is None
    if phase == OVER:
        assert len(done.attempts) == 1
