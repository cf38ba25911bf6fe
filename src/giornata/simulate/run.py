"""A run of one scenario, from the submission of the first job until the last machine is gone, with its troubles."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from giornata.control.context import GovernedFleet
from giornata.simulate.batches import RequestBatches
from giornata.simulate.draws import rng
from giornata.simulate.installation import Installation, counts_of, installed
from giornata.simulate.node import ModeledNode
from giornata.simulate.plane import VRAM_BYTES, SimulatedControlPlane
from giornata.simulate.rented.provider import ModeledFleet
from giornata.simulate.results.story import JobTrace
from giornata.simulate.scenario import PlannedFault, Scenario
from giornata.simulate.world import Simulation

WIND_DOWN_S = 2 * 3600.0
POLL_S = 30.0  # between the claims of a node, while there is no work


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """The results of a run, for the report. A run against another control plane has no installation."""

    scenario: Scenario
    seed: int
    world: Simulation
    installation: Installation | None
    makespan_s: float
    wall_s: float
    cpu_s: float


@contextmanager
def played(scenario: Scenario, *, seed: int = 0, keep_beats: bool = False) -> Iterator[SimulationResult]:
    """Play a scenario to its end. The installation can be looked at until the context ends."""
    world = Simulation(scenario, seed=seed, new_node=ModeledNode)
    world.trace.keep_beats = keep_beats
    with _installed(world) as installation:
        yield run(world, installation)


def run(world: Simulation, installation: Installation | None) -> SimulationResult:
    """Run the events of a simulation until its jobs are done and the last instance is gone."""
    scenario, began_s, cpu_s = world.scenario, time.monotonic(), time.process_time()
    for trouble in scenario.troubles:
        plan_fault(world, trouble)
    world.sample()
    latest_ms = world.agenda.start_ms + round(scenario.latest_h * 3_600_000)
    if world.agenda.run(until=lambda: world.done_at_s is not None, latest_ms=latest_ms):
        _wind_down(world)
    for fleet in world.manual:
        fleet.stop_all()
    ends = [story.done_ms for story in world.trace.jobs.values() if story.done_ms is not None]
    makespan_s = (max(ends, default=world.agenda.now_ms()) - world.agenda.start_ms) / 1000
    return SimulationResult(
        scenario=scenario,
        seed=world.seed,
        world=world,
        installation=installation,
        makespan_s=makespan_s,
        wall_s=time.monotonic() - began_s,
        cpu_s=time.process_time() - cpu_s,
    )


@contextmanager
def _installed(world: Simulation) -> Iterator[Installation]:
    scenario = world.scenario
    scaling = {name: _governed(fleet, scenario) for name, fleet in world.fleets.items()}
    with installed(world.agenda, policy=scenario.policy, fleets=scaling, projects=scenario.projects) as installation:
        plane = SimulatedControlPlane(
            installation.ctx,
            world.agenda,
            slowest_loop_s=scenario.slowest_loop_s,
            after_work=lambda: world.batches.wake(),  # noqa: PLW0108 - `batches` is set after the plane
        )
        world.plane = plane
        world.batches = RequestBatches(
            world.agenda,
            plane,
            beat_s=scenario.beat_s,
            poll_s=POLL_S,
            phases=scenario.phases,
            seed=world.seed,
            note_beat=world.note_beat,
        )
        world.counts = lambda: counts_of(installation)
        _submit(world, installation, plane)
        yield installation


def _governed(fleet: ModeledFleet, scenario: Scenario) -> GovernedFleet:
    return GovernedFleet(
        name=fleet.offer.name, driver="modeled", fleet=fleet, vram_bytes=VRAM_BYTES, scaling=scenario.scaling
    )


def _submit(world: Simulation, installation: Installation, plane: SimulatedControlPlane) -> None:
    scenario = world.scenario
    weights = scenario.weights or (1,) * scenario.projects
    spec = {"max_train_steps": scenario.steps, "checkpointing_steps": scenario.every, **scenario.spec}
    # The first project's jobs come first: a fair queue must not serve the projects one after the other.
    counts = [scenario.jobs * weight // sum(weights) for weight in weights]
    counts[0] += scenario.jobs - sum(counts)
    for project, count in zip(installation.projects, counts, strict=True):
        for number in range(count):
            job_id = installation.submit(project, spec, name=f"{project} job {number + 1}")
            plane.project_of[job_id] = project
            world.trace.jobs[job_id] = JobTrace(id=job_id, project_id=project, steps=scenario.steps)


def _wind_down(world: Simulation) -> None:
    """Run until no instance is billed any more: leftover instances cost money too."""
    latest_ms = world.agenda.now_ms() + round(WIND_DOWN_S * 1000)
    if any(fleet.present for fleet in world.manual):
        world.agenda.run(until=lambda: not any(fleet.present for fleet in world.manual), latest_ms=latest_ms)


def plan_fault(world: Simulation, trouble: PlannedFault) -> None:
    """Put down on the agenda what will go wrong, and when it is over."""
    begin_ms = world.agenda.start_ms + round(trouble.at_s * 1000)
    end_ms = begin_ms + round(trouble.for_s * 1000)
    match trouble.kind:
        case "region-lost":
            world.agenda.at(begin_ms, partial(_lose_region, world, trouble.share))
        case "evening":
            world.agenda.at(begin_ms, partial(_come_home, world, trouble))
        case "sold-out":
            for fleet in world.fleets.values():
                world.agenda.at(begin_ms, fleet.sell_out)
                world.agenda.at(end_ms, fleet.restock)
        case "server-away" | "provider-away":
            for at_ms, away in ((begin_ms, True), (end_ms, False)):
                world.agenda.at(at_ms, partial(_set_away, world, trouble, away=away))


def _set_away(world: Simulation, trouble: PlannedFault, *, away: bool) -> None:
    if trouble.kind == "server-away":
        world.plane.away = away
        return
    for fleet in world.fleets.values():
        fleet.away = away


def _lose_region(world: Simulation, share: float) -> None:
    for fleet in world.fleets.values():
        for container in list(fleet.present.values()):
            if rng(world.seed, "region", container.machine.id).random() < share:
                fleet.interrupt(container, zombie=False)


def _come_home(world: Simulation, trouble: PlannedFault) -> None:
    """Owners come home within minutes, and take their machines back."""
    for fleet in world.fleets.values():
        by_machine = {
            rng(world.seed, "evening", f"{trouble.at_s} {each.machine.id}").random(): each
            for each in fleet.present.values()
            if each.running_since_ms is not None
        }
        leaving = math.ceil(trouble.share * len(by_machine))
        for lot, container in sorted(by_machine.items())[:leaving]:
            moment = rng(world.seed, "minute", f"{lot} {container.machine.id}").random()
            world.agenda.after(moment * trouble.for_s, partial(fleet.interrupt, container, zombie=False))
