"""A run: one scenario under one policy, from the first job's submission until the last machine is gone."""

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from giornata.control.context import GovernedFleet
from giornata.simulate.agenda import Agenda
from giornata.simulate.ancestor import AncestorPlane
from giornata.simulate.ancestor_operator import Autoscaler, Operator
from giornata.simulate.crowd import Crowd
from giornata.simulate.installation import Installation, installed
from giornata.simulate.node import ModelledNode
from giornata.simulate.plane import Grant, Manners
from giornata.simulate.provider import Container, ModelledFleet, Offer
from giornata.simulate.queue_view import Counts, counts_of
from giornata.simulate.scenario import PolicyName, Scenario
from giornata.simulate.shipped import VRAM_BYTES, ShippedPlane
from giornata.simulate.story import BeatSeen, Chronicle, JobStory, Sample
from giornata.simulate.tally import Tally
from giornata.simulate.troubles import plan
from giornata.simulate.work import Work

SAMPLE_S = 60.0
WIND_DOWN_S = 2 * 3600.0
OURS = Manners(poll_s=30.0, checks_s=4.0, stops_by_own_clock=True)
THEIRS = Manners(poll_s=5.0, checks_s=0.0, stops_by_own_clock=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a run leaves behind for the report."""

    scenario: Scenario
    policy: PolicyName
    seed: int
    world: "World"
    installation: Installation | None
    makespan_s: float
    wall_s: float
    cpu_s: float


class World:
    """Everything that a modelled node can see. `trainer`, `manners`, `plane`, `crowd`, `agenda` and the fleets."""

    def __init__(self, scenario: Scenario, *, seed: int, policy: PolicyName) -> None:
        self.scenario, self.seed, self.policy = scenario, seed, policy
        self.trainer = scenario.trainer
        self.manners = OURS if policy == "giornata" else THEIRS
        self.agenda = Agenda()
        self.tally, self.chronicle = Tally(), Chronicle()
        self._numbers = itertools.count(1)
        self._fleet_by_container: dict[str, ModelledFleet] = {}
        self.fleets = {offer.name: self._fleet(offer) for offer in scenario.offers}
        self.plane: ShippedPlane | AncestorPlane
        self.crowd: Crowd
        self.counts: Callable[[], Counts]
        self.done_at_s: float | None = None
        self.operator: Operator | None = None

    def _fleet(self, offer: Offer) -> ModelledFleet:
        def settle(container: Container) -> ModelledNode:
            self._fleet_by_container[container.id] = fleet
            return ModelledNode(self, container, number=next(self._numbers))

        fleet = ModelledFleet(offer, agenda=self.agenda, seed=self.seed, tally=self.tally, settle=settle)
        return fleet

    def fleet_of(self, container: Container) -> ModelledFleet:
        """Whose it is."""
        return self._fleet_by_container[container.id]

    @property
    def manual(self) -> list[ModelledFleet]:
        """Every fleet."""
        return list(self.fleets.values())

    # ---- what nodes tell the chronicle ----

    def note_began(self, node: ModelledNode, work: Work) -> None:
        """An attempt began."""
        self.chronicle.attempts_on_broken += node.machine.breaks is not None and not work.grant.is_trial
        if work.grant.is_trial:
            self.chronicle.trials += 1
            return
        story = self.chronicle.jobs[work.grant.job_id]
        story.started_ms = story.started_ms or work.began_ms
        story.attempts.append(node.machine.id)

    def note_commit(self, grant: Grant, step: int) -> None:
        """A checkpoint was accepted."""
        story = self.chronicle.jobs[grant.job_id]
        if grant.attempt < len(story.attempts) and self.policy == "giornata":
            self.chronicle.stale_writes_accepted += 1
        del step

    def note_end_of_training(self, node: ModelledNode, work: Work) -> None:
        """A node had a job's result, and was answered."""
        if not work.grant.is_trial:
            self.chronicle.jobs[work.grant.job_id].trained_to_the_end += node.polite

    def note_success(self, node: ModelledNode, work: Work) -> None:
        """A completion was accepted."""
        del node
        if work.grant.is_trial:
            return
        story = self.chronicle.jobs[work.grant.job_id]
        story.completions += 1
        story.done_ms = story.done_ms or self.agenda.now_ms()

    def note_lost(self, node: ModelledNode, work: Work) -> None:
        """A node found its lease lost, or gave it up for lost."""
        del node, work
        self.chronicle.lost_leases += 1

    def note_ended(self, node: ModelledNode, work: Work) -> float | None:
        """An attempt's time is over on this node; the share of its steps' time that was of use. None: a trial."""
        now_ms = self.agenda.now_ms()
        lived_ms = now_ms - (work.began_ms if work.booked_ms is None else work.booked_ms)
        work.booked_ms = now_ms
        self.tally.attempt_ms += lived_ms
        if work.grant.is_trial:
            return None
        story = self.chronicle.jobs[work.grant.job_id]
        story.attempt_ms += lived_ms
        start = work.grant.start_step if work.booked_step is None else work.booked_step
        work.booked_step = max(work.step_at(now_ms), work.committed, start)
        done = work.booked_step - start
        kept = max(0, work.committed - max(start, story.best_step))
        story.best_step = max(story.best_step, work.committed)
        self.tally.steps += done
        self.tally.useful_steps += kept
        self.tally.machines[node.machine.id].useful_steps += kept
        return kept / done if done else 0.0

    def note_beat(self, node: ModelledNode) -> None:
        """For the plot of a job's life."""
        if self.chronicle.keep_beats and node.work is not None:
            said = node.progress()
            seen = BeatSeen(self.agenda.elapsed_s(), said.job_id, node.machine.id, said.step, said.phase)
            self.chronicle.beats.append(seen)

    # ---- the course of events ----

    def sample(self) -> None:
        """Look at the whole, again and again."""
        self.agenda.after(SAMPLE_S, self.sample)
        counts = self.counts()
        running = sum(fleet.running for fleet in self.manual)
        present = sum(len(fleet.present) for fleet in self.manual)
        self.chronicle.samples.append(
            Sample(self.agenda.elapsed_s(), counts.queued, counts.at_work, running, present - running)
        )
        if counts.queued + counts.at_work == 0 and self.done_at_s is None:
            self.done_at_s = self.agenda.elapsed_s()


@contextmanager
def played(
    scenario: Scenario, *, seed: int = 0, policy: PolicyName = "giornata", keep_beats: bool = False
) -> Iterator[Ran]:
    """Play a scenario to its end. The installation can be looked at until the context ends."""
    began_s, cpu_s = time.monotonic(), time.process_time()
    world = World(scenario, seed=seed, policy=policy)
    world.chronicle.keep_beats = keep_beats
    with _under(world) as installation:
        for trouble in scenario.troubles:
            plan(world, trouble)
        world.sample()
        latest_ms = world.agenda.start_ms + round(scenario.latest_h * 3_600_000)
        if world.agenda.run(until=lambda: world.done_at_s is not None, latest_ms=latest_ms):
            _wind_down(world)
        for fleet in world.manual:
            fleet.stop_all()
        ends = [story.done_ms for story in world.chronicle.jobs.values() if story.done_ms is not None]
        makespan_s = (max(ends, default=world.agenda.now_ms()) - world.agenda.start_ms) / 1000
        yield Ran(
            scenario=scenario,
            policy=policy,
            seed=seed,
            world=world,
            installation=installation,
            makespan_s=makespan_s,
            wall_s=time.monotonic() - began_s,
            cpu_s=time.process_time() - cpu_s,
        )


@contextmanager
def _under(world: World) -> Iterator[Installation | None]:
    scenario = world.scenario
    if world.policy == "ancestor":
        _begin_ancestor(world)
        yield None
        return
    scaling = {name: _governed(fleet, scenario) for name, fleet in world.fleets.items()}
    with installed(world.agenda, policy=scenario.policy, fleets=scaling, projects=scenario.projects) as installation:
        plane = ShippedPlane(
            installation.ctx,
            world.agenda,
            slowest_loop_s=scenario.slowest_loop_s,
            after_work=lambda: world.crowd.wake(),  # noqa: PLW0108 - the crowd comes after the plane
        )
        world.plane = plane
        world.crowd = _crowd(world)
        world.counts = lambda: counts_of(installation)
        _submit(world, installation, plane)
        yield installation


def _governed(fleet: ModelledFleet, scenario: Scenario) -> GovernedFleet:
    return GovernedFleet(
        name=fleet.offer.name, driver="modelled", fleet=fleet, vram_bytes=VRAM_BYTES, scaling=scenario.scaling
    )


def _crowd(world: World) -> Crowd:
    beat_s = world.scenario.beat_s if world.policy == "giornata" else 30.0
    return Crowd(
        world.agenda,
        world.plane,
        beat_s=beat_s,
        poll_s=world.manners.poll_s,
        phases=world.scenario.phases,
        seed=world.seed,
        note_beat=world.note_beat,
    )


def _submit(world: World, installation: Installation, plane: ShippedPlane) -> None:
    scenario = world.scenario
    weights = scenario.weights or (1,) * scenario.projects
    spec = {"max_train_steps": scenario.steps, "checkpointing_steps": scenario.every, **scenario.spec}
    # The first project's come first: whoever is fair must not serve them one after the other.
    counts = [scenario.jobs * weight // sum(weights) for weight in weights]
    counts[0] += scenario.jobs - sum(counts)
    for project, count in zip(installation.projects, counts, strict=True):
        for number in range(count):
            job_id = installation.submit(project, spec, name=f"{project} job {number + 1}")
            plane.project_of[job_id] = project
            world.chronicle.jobs[job_id] = JobStory(id=job_id, project_id=project, steps=scenario.steps)


def _begin_ancestor(world: World) -> None:
    scenario = world.scenario
    every = scenario.every if isinstance(scenario.every, int) else 100
    plane = AncestorPlane(world.agenda, seed=world.seed, steps=scenario.steps, every=every)
    world.plane = plane
    world.crowd = _crowd(world)
    world.counts = plane.counts
    for number in range(scenario.jobs):
        job_id = f"job_{number + 1:06d}"
        plane.submit(job_id)
        world.chronicle.jobs[job_id] = JobStory(id=job_id, project_id="all", steps=scenario.steps)
    fleet = world.manual[0]
    Autoscaler(world.agenda, plane, fleet, most=scenario.nodes).begin()
    world.operator = Operator(world.agenda, plane, fleet, waiting=lambda: world.crowd.waiting)
    world.operator.begin()


def _wind_down(world: World) -> None:
    """Until nobody is billed any more: what is left over costs money too."""
    latest_ms = world.agenda.now_ms() + round(WIND_DOWN_S * 1000)
    if any(fleet.present for fleet in world.manual):
        world.agenda.run(until=lambda: not any(fleet.present for fleet in world.manual), latest_ms=latest_ms)
