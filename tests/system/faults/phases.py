"""The phases of a job, and how the world is stopped at one exact point of it.

A gate in the engine, or a proxy that holds a request, stops everything; a test kills somebody; the world goes on.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from PIL import Image
from tests.fixtures.chaos_proxy import Trap
from tests.system.conftest import PATIENCE_S, until
from tests.system.faults.processes import LEASE_S
from tests.system.faults.rig import Rig
from tests.system.faults.scenario import CADENCE, GatedJob

CLAIM = "^/v1/node/claim$"
ATTEMPT = "^/v1/node/attempts/[^/]+"


@dataclass(frozen=True, kw_only=True)
class FaultPhase:
    """Where the world stops: at `gate`, and, if there is a `trap`, when it has caught its request as well.

    `safe_step` is committed before that. An engine that is let go waits at `later_gate` for `go_on`: it would run
    through the whole job before its node has found the control plane again.
    """

    gate: str = ""
    later_gate: str = ""
    trap: Callable[[], Trap] | None = None
    by_storage: bool = False
    safe_step: int = 0
    pictures: bool = False
    cache_bytes: int = 0
    engine_matters: bool = True


PHASES = {
    "claimed": FaultPhase(trap=lambda: Trap("POST", CLAIM, hold=True, hold_reply=True), engine_matters=False),
    "downloading": FaultPhase(
        trap=lambda: Trap("GET", "^/v1/blobs/", hold=True), by_storage=True, pictures=True, engine_matters=False
    ),
    "looking into the cache": FaultPhase(
        trap=lambda: Trap("GET", f"{ATTEMPT}/cache/nothing", hold=True), later_gate="started"
    ),
    "started": FaultPhase(gate="started"),
    "caching": FaultPhase(gate="cached", trap=lambda: Trap("PUT", f"{ATTEMPT}/cache/", hold=True), cache_bytes=1000),
    "training": FaultPhase(gate="step-15", safe_step=10),
    "writing a checkpoint": FaultPhase(gate="writing-20", safe_step=10),
    "written, not uploaded": FaultPhase(
        gate="written-20", trap=lambda: Trap("PUT", "^/v1/blobs/", hold=True), by_storage=True, safe_step=10
    ),
    "uploaded, not committed": FaultPhase(
        gate="written-20", trap=lambda: Trap("POST", f"{ATTEMPT}/checkpoints$", hold=True), safe_step=10
    ),
    "committed, not acknowledged": FaultPhase(
        gate="written-20", trap=lambda: Trap("POST", f"{ATTEMPT}/checkpoints$", hold_reply=True), safe_step=10
    ),
    "exporting": FaultPhase(gate="exporting", safe_step=30),
    "result uploaded, not committed": FaultPhase(
        gate="exported", trap=lambda: Trap("POST", f"{ATTEMPT}/artifacts$", hold=True), safe_step=30
    ),
    "completing": FaultPhase(
        trap=lambda: Trap("POST", f"{ATTEMPT}/complete$", hold=True), safe_step=30, engine_matters=False
    ),
    "completed, not acknowledged": FaultPhase(
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


def stop_the_world(rig: Rig, scenario: GatedJob, phase: FaultPhase) -> Trap | None:
    """Submit the job and wait until everything stands where the phase says."""
    gates = [f"written-{step}" for step in range(CADENCE, phase.safe_step + 1, CADENCE)]
    for gate in gates:
        scenario.stop_at(gate)
    for gate in filter(None, (phase.gate, phase.later_gate)):
        scenario.stop_at(gate)
    trap = None if phase.trap is None else phase.trap()
    more: dict[str, Any] = {"cache_bytes": phase.cache_bytes} if phase.cache_bytes else {}
    if phase.pictures:
        more["dataset"] = a_dataset(rig, scenario.gates.parent / scenario.salt)

    def set_trap() -> None:
        if trap is not None:
            (rig.storage if phase.by_storage else rig.control).set(trap)

    if not gates:
        set_trap()
    if trap is not None and trap.hold_reply and trap.hold:
        # A claim that has passed already must not get the job.
        assert trap.caught.wait(PATIENCE_S), rig.node.log.read_text()
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
        assert trap.caught.wait(PATIENCE_S), rig.story(scenario.job_id)
        if trap.hold_reply:
            trap.forward()
            assert trap.answered.wait(PATIENCE_S)
    return trap


def go_on(scenario: GatedJob, trap: Trap | None, *, cut: bool) -> None:
    """Let go what was held; with `cut`, requests on their way are lost with whoever died."""
    scenario.open()
    if trap is not None:
        trap.release(cut=cut)
        assert trap.finished.wait(PATIENCE_S)


def await_reunion(rig: Rig, scenario: GatedJob, up_at: datetime) -> None:
    """Wait until the attempt has found the control plane again, which is up since then, or its end.

    Until then the engine, let go, would run ahead.
    """

    def is_settled() -> bool:
        attempts = rig.client.get_job(scenario.job_id).attempts
        return len(attempts) > 1 or any(
            each.reason is not None or each.lease_expires_at > up_at + timedelta(seconds=LEASE_S) for each in attempts
        )

    until(is_settled, "the node and the server to find each other again")
