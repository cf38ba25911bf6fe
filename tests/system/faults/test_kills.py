"""kill -9 of everybody at every phase of a job.

For each phase the world is stopped at one exact point, by a gate in the engine or by a proxy that holds a request;
then somebody is killed; then the world goes on.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from PIL import Image
from tests.fixtures.chaos_proxy import Trap
from tests.system.conftest import until
from tests.system.faults.processes import LEASE_S
from tests.system.faults.rig import Rig
from tests.system.faults.scenario import CADENCE, Scenario

from giornata.domain.reasons import Reason

CLAIM = "^/v1/node/claim$"
ATTEMPT = "^/v1/node/attempts/[^/]+"


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Where the world stops: at `gate`, and, if there is a `trap`, when it has caught its request as well.

    `safe_step` is committed before that.
    """

    gate: str = ""
    trap: Callable[[], Trap] | None = None
    by_storage: bool = False
    safe_step: int = 0
    pictures: bool = False
    engine_matters: bool = True


PHASES = {
    "claimed": Phase(trap=lambda: Trap("POST", CLAIM, hold=True, hold_reply=True), engine_matters=False),
    "downloading": Phase(
        trap=lambda: Trap("GET", "^/v1/blobs/", hold=True), by_storage=True, pictures=True, engine_matters=False
    ),
    "looking into the cache": Phase(trap=lambda: Trap("GET", f"{ATTEMPT}/cache/nothing", hold=True)),
    "started": Phase(gate="started"),
    "training": Phase(gate="step-15", safe_step=10),
    "writing a checkpoint": Phase(gate="writing-20", safe_step=10),
    "written, not uploaded": Phase(
        gate="written-20", trap=lambda: Trap("PUT", "^/v1/blobs/", hold=True), by_storage=True, safe_step=10
    ),
    "uploaded, not committed": Phase(
        gate="written-20", trap=lambda: Trap("POST", f"{ATTEMPT}/checkpoints$", hold=True), safe_step=10
    ),
    "committed, not acknowledged": Phase(
        gate="written-20", trap=lambda: Trap("POST", f"{ATTEMPT}/checkpoints$", hold_reply=True), safe_step=10
    ),
    "exporting": Phase(gate="exporting", safe_step=30),
    "result uploaded, not committed": Phase(
        gate="exported", trap=lambda: Trap("POST", f"{ATTEMPT}/artifacts$", hold=True), safe_step=30
    ),
    "completing": Phase(
        trap=lambda: Trap("POST", f"{ATTEMPT}/complete$", hold=True), safe_step=30, engine_matters=False
    ),
    "completed, not acknowledged": Phase(
        trap=lambda: Trap("POST", f"{ATTEMPT}/complete$", hold_reply=True), safe_step=30, engine_matters=False
    ),
}
# Afterwards the job is done, whoever dies.
OVER = "completed, not acknowledged"


def a_dataset(rig: Rig, folder: Path) -> str:
    """Three pictures that no node has seen yet."""
    folder.mkdir()
    for number in range(3):
        noise = Image.frombytes("RGB", (64, 64), (folder.name + str(number)).encode().ljust(64 * 64 * 3, b"~"))
        noise.save(folder / f"{number}.png")
        (folder / f"{number}.txt").write_text("noise")
    return rig.client.dataset_from_folder(folder).id


def stop_the_world(rig: Rig, scenario: Scenario, phase: Phase) -> Trap | None:
    """Submit the job and wait until everything stands where the phase says."""
    gates = [f"written-{step}" for step in range(CADENCE, phase.safe_step + 1, CADENCE)]
    for gate in gates:
        scenario.stop_at(gate)
    if phase.gate:
        scenario.stop_at(phase.gate)
    trap = None if phase.trap is None else phase.trap()
    more = {"dataset": a_dataset(rig, scenario.gates.parent / scenario.salt)} if phase.pictures else {}

    def set_trap() -> None:
        if trap is not None:
            (rig.storage if phase.by_storage else rig.control).set(trap)

    if not gates:
        set_trap()
    if trap is not None and trap.hold_reply and trap.hold:
        # A claim that has passed already must not get the job.
        assert trap.caught.wait(30), rig.node.log.read_text()
    scenario.submit(**more)
    for gate in gates:
        scenario.await_gate(gate)
        scenario.await_committed(int(gate.removeprefix("written-")))
        if gate == gates[-1]:
            set_trap()
        scenario.open(gate)
    if phase.gate:
        scenario.await_gate(phase.gate)
    if trap is not None:
        assert trap.caught.wait(30), rig.story(scenario.job_id)
        if trap.hold_reply:
            trap.forward()
            assert trap.answered.wait(30)
    return trap


def go_on(scenario: Scenario, trap: Trap | None, *, cut: bool) -> None:
    """Let go what was held; with `cut`, requests on their way are lost with whoever died."""
    scenario.open()
    if trap is not None:
        trap.release(cut=cut)
        assert trap.finished.wait(30)


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

    def is_settled() -> bool:
        """Whether the attempt has found the server again, or its end. Until then the engine would run ahead."""
        attempts = rig.client.get_job(scenario.job_id).attempts
        return len(attempts) > 1 or any(
            each.reason is not None or each.lease_expires_at > up_at + timedelta(seconds=LEASE_S) for each in attempts
        )

    until(is_settled, "the node and the server to find each other again")
    go_on(scenario, trap, cut=True)
    scenario.finish()
    assert rig.node.process.poll() is None
