"""kill -9 of everybody at every phase of a job: the table of phases is in phases.py."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.system.conftest import until
from tests.system.faults.phases import OVER, PHASES, await_reunion, go_on, stop_the_world

from giornata.domain.jobs.reasons import Reason


@pytest.mark.parametrize("phase", PHASES)
def test_the_engine_is_killed(rig, phase):
    scenario = rig.scenario()
    trap = stop_the_world(rig, scenario, PHASES[phase])
    node = rig.node
    killed = node.engine_pid()
    node.kill_engine()
    # The machine whose engine crashed does not get this job again.
    other = rig.start_node() if PHASES[phase].engine_matters else None
    until(lambda: not Path(f"/proc/{killed}").exists(), "the dead engine to be reaped")
    go_on(scenario, trap, cut=False)
    done = scenario.finish()
    if other is not None:
        assert [each.reason for each in done.attempts] == [Reason.CRASHED, Reason.SUCCEEDED]
        assert "SIGKILL" in done.attempts[0].message
        node.end()
        until(node.is_gone, "nothing of the node to be left")
    else:
        assert done.attempts[-1].machine_id == node.machine_id
        assert len(done.attempts) == 1


@pytest.mark.parametrize("phase", PHASES)
def test_the_agent_is_killed(rig, phase):
    scenario = rig.scenario()
    trap = stop_the_world(rig, scenario, PHASES[phase])
    node = rig.node
    node.process.kill()
    # In the dead node's place, so that it finds what that one left on the disk.
    rig.start_node(work_dir=node.work_dir)
    until(node.is_gone, "the engine to follow its agent")
    go_on(scenario, trap, cut=True)
    done = scenario.finish()
    assert done.interruptions == (0 if phase == OVER else 1)


@pytest.mark.parametrize("phase", PHASES)
def test_the_whole_node_is_killed(rig, phase):
    scenario = rig.scenario()
    trap = stop_the_world(rig, scenario, PHASES[phase])
    node = rig.node
    node.kill_all()
    rig.start_node(work_dir=node.work_dir)
    go_on(scenario, trap, cut=True)
    done = scenario.finish()
    assert node.is_gone()
    assert done.interruptions == (0 if phase == OVER else 1)
    assert done.attempts[-1].start_step >= (0 if phase == OVER else PHASES[phase].safe_step)


@pytest.mark.parametrize("phase", PHASES)
def test_the_server_is_killed(rig, phase):
    scenario = rig.scenario()
    trap = stop_the_world(rig, scenario, PHASES[phase])
    rig.server.kill()
    rig.server.start()
    up_at = datetime.now(UTC)
    if trap is not None:
        trap.release(cut=True)
    await_reunion(rig, scenario, up_at)
    go_on(scenario, trap, cut=True)
    scenario.finish()
    assert rig.node.process.poll() is None


def test_no_metrics_are_missing_when_the_node_is_killed_right_after_a_commit(rig):
    scenario = rig.scenario()
    scenario.stop_at("written-10")
    scenario.submit()
    scenario.await_gate("written-10")
    scenario.await_committed(10)
    node = rig.node
    node.kill_all()
    assert [point.step for point in rig.client.metrics(scenario.job_id)] == list(range(1, 11))
    scenario.open()
    rig.start_node(work_dir=node.work_dir)
    done = scenario.finish()
    assert done.attempts[-1].start_step == 10
    assert [point.step for point in rig.client.metrics(scenario.job_id)] == list(range(1, 31))
