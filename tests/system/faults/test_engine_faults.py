"""Engines that hang, spin, or eat all memory; agents that sleep past their lease; servers that stay away."""

import os
import signal
import sys
from pathlib import Path

import pytest
from tests.system.conftest import PATIENCE_S, until
from tests.system.faults.memory_cap import memory_cap
from tests.system.faults.rig import ENGINE

from giornata.domain.jobs.reasons import Reason

# Enough for the interpreter, and soon eaten.
LITTLE_MEMORY_KIB = 400_000
HUNGRY_ENGINE = ("sh", "-c", f"ulimit -v {LITTLE_MEMORY_KIB}; exec {' '.join(ENGINE)}")

# Enough for an engine, and no more than a moment for one that grows.
CAP_BYTES = 128 * 2**20


@pytest.mark.parametrize(
    ("act", "reason", "message", "strikes"),
    [
        ("hang", Reason.NODE_DRIVER, "not even from its alive thread", 1),
        ("spin", Reason.TOO_SLOW, "no step within", 1),
        # A strike in hindsight: another machine could do the job.
        ("grow", Reason.CRASHED, "exit code 1", 1),
    ],
)
def test_an_engine_gets_stuck(rig, act, reason, message, strikes):
    scenario = rig.scenario()
    rig.node.end()
    node = rig.start_node(engine=HUNGRY_ENGINE, alive_s=1.5, stall_s=3.0)
    engine = node.engine_pid()
    scenario.stop_at("step-15", act)
    scenario.submit()
    scenario.await_gate("step-15")
    # As it will be: the machine that gave up does not get the job again.
    rig.start_node()
    done = scenario.finish()
    first, second = done.attempts
    assert (first.reason, second.reason) == (reason, Reason.SUCCEEDED)
    assert message in first.message
    assert second.start_step == first.committed_step
    (machine,) = [each for each in rig.client.nodes() if each.machine_id == node.machine_id]
    assert machine.strikes == strikes
    assert not Path(f"/proc/{engine}").exists(), "the engine that is stuck is ended"
    if act == "grow":
        assert "MemoryError" in node.log.read_text() + "".join(line.line for line in rig.client.logs(done.id))
    node.end()


def test_the_kernel_kills_an_engine_for_its_memory(rig):
    """No error in the engine, no last words: SIGKILL by the kernel, in a control group that has no more to give."""
    with memory_cap(CAP_BYTES) as cap:
        scenario = rig.scenario()
        rig.node.end()
        node = rig.start_node(engine=cap.entering(ENGINE))
        engine = node.engine_pid()
        scenario.stop_at("step-15", "grow")
        scenario.submit()
        scenario.await_gate("step-15")
        rig.start_node()
        done = scenario.finish()
        first, second = done.attempts
        assert cap.kills() == 1
        assert (first.reason, second.reason) == (Reason.CRASHED, Reason.SUCCEEDED)
        assert "out of memory" in first.message
        assert second.start_step == first.committed_step
        assert not Path(f"/proc/{engine}").exists()
        (machine,) = [each for each in rig.client.nodes() if each.machine_id == node.machine_id]
        assert machine.strikes == 1, "another machine could do it"
        # The agent lives, and its next engine does other jobs.
        rig.node.end()
        again = rig.scenario_on(node)
        again.submit()
        assert again.finish().attempts[0].machine_id == node.machine_id
        node.end()


@pytest.mark.parametrize("asleep", ["the agent", "agent and engine"])
def test_a_node_sleeps_past_its_lease_and_wakes(rig, asleep):
    scenario = rig.scenario()
    scenario.run_to("step-15")
    zombie = rig.node
    sleepers = [zombie.process.pid] + ([zombie.engine_pid()] if asleep == "agent and engine" else [])
    for pid in sleepers:
        os.kill(pid, signal.SIGSTOP)
    scenario.forget("step-15")
    other = rig.start_node()
    until(lambda: len(rig.client.get_job(scenario.job_id).attempts) == 2, "another node to take the job")
    scenario.await_gate("step-15")
    seen = len(rig.control.seen)
    before = scenario.safe()
    for pid in sleepers:
        os.kill(pid, signal.SIGCONT)
    # Its engine is at work in the middle of a step, and both attempts hold the same job: only one may go on.
    until(lambda: "dropped" in zombie.log.read_text(), "the zombie to stop by itself")
    first = rig.client.get_job(scenario.job_id).attempts[0]
    said = [each for each in rig.control.seen[seen:] if first.id in each]
    assert [each for each in said if not each.endswith("/heartbeat")] == [], "a zombie may ask, and write nothing"
    assert scenario.safe() == before
    scenario.open()
    done = scenario.finish()
    assert [each.reason for each in done.attempts] == [Reason.LEASE_EXPIRED, Reason.SUCCEEDED]
    assert done.attempts[1].machine_id == other.machine_id
    # It lives on as a node like any other.
    other.end()
    again = rig.scenario_on(zombie)
    again.submit()
    assert again.finish().attempts[0].machine_id == zombie.machine_id


def test_the_server_is_away_for_longer_than_a_lease(rig):
    scenario = rig.scenario()
    scenario.run_to("step-15")
    # The node may have said so of an earlier job.
    before = len(rig.node.log.read_text())
    rig.server.kill()
    until(lambda: "by the node's own clock" in rig.node.log.read_text()[before:], "the node to stop by its own clock")
    rig.server.start()
    scenario.open()
    done = scenario.finish()
    assert len(done.attempts) == 2
    assert len({each.node_id for each in done.attempts}) == 1


def test_an_engine_that_cannot_start_does_not_take_jobs(rig):
    """The node ends by itself, and says why; it never claims."""
    scenario = rig.scenario()
    rig.node.end()
    broken = rig.start_node(engine=(sys.executable, "-c", "raise SystemExit('no such device')"))
    scenario.submit()
    assert broken.process.wait(PATIENCE_S) == 78
    assert "no such device" in broken.log.read_text()
    assert rig.client.get_job(scenario.job_id).attempts == ()
    rig.start_node()
    assert len(scenario.finish().attempts) == 1
