"""The state of a run that a modeled node can see, and the books in which it is noted."""

import itertools
from collections.abc import Callable

from giornata.simulate.agenda import Agenda
from giornata.simulate.batches import BatchedNode, RequestBatches
from giornata.simulate.installation import Counts
from giornata.simulate.plane import Grant, SimulatedControlPlane
from giornata.simulate.rented.machines import SimulatedMachine
from giornata.simulate.rented.provider import Container, ModeledFleet, SimulatedNode, SimulatedOffer
from giornata.simulate.results.billed_time import BilledTime
from giornata.simulate.results.story import BeatSeen, QueueSample, SimulationTrace
from giornata.simulate.scenario import Scenario
from giornata.simulate.work import SimulatedAttempt

SAMPLE_S = 60.0

NewNode = Callable[["Simulation", Container, int], SimulatedNode]


class Simulation:
    """The state of a run: clock, fleets, control plane and books. `new_node` makes the node of a container."""

    def __init__(self, scenario: Scenario, *, seed: int, new_node: NewNode) -> None:
        self.scenario, self.seed, self._new_node = scenario, seed, new_node
        self.trainer = scenario.trainer
        self.agenda = Agenda()
        self.billed_time, self.trace = BilledTime(), SimulationTrace()
        self._numbers = itertools.count(1)
        self._fleet_by_container: dict[str, ModeledFleet] = {}
        self.fleets = {offer.name: self._fleet(offer) for offer in scenario.offers}
        self.plane: SimulatedControlPlane
        self.batches: RequestBatches
        self.counts: Callable[[], Counts]
        self.done_at_s: float | None = None

    def _fleet(self, offer: SimulatedOffer) -> ModeledFleet:
        def settle(container: Container) -> SimulatedNode:
            self._fleet_by_container[container.id] = fleet
            return self._new_node(self, container, next(self._numbers))

        fleet = ModeledFleet(offer, agenda=self.agenda, seed=self.seed, billed_time=self.billed_time, settle=settle)
        return fleet

    def fleet_of(self, container: Container) -> ModeledFleet:
        """Return the fleet that the container belongs to."""
        return self._fleet_by_container[container.id]

    @property
    def manual(self) -> list[ModeledFleet]:
        """List all fleets of the simulation."""
        return list(self.fleets.values())

    # ---- what nodes report to the trace ----

    def note_began(self, work: SimulatedAttempt, machine: SimulatedMachine) -> None:
        """Record that an attempt began on a machine."""
        self.trace.attempts_on_broken += machine.breaks is not None and not work.grant.is_trial
        if work.grant.is_trial:
            self.trace.trials += 1
            return
        story = self.trace.jobs[work.grant.job_id]
        story.started_ms = story.started_ms or work.began_ms
        story.attempts.append(machine.id)

    def note_commit(self, grant: Grant) -> None:
        """Record that the server accepted a checkpoint."""
        story = self.trace.jobs[grant.job_id]
        self.trace.stale_writes_accepted += grant.attempt < len(story.attempts)

    def note_end_of_training(self, work: SimulatedAttempt, *, polite: bool) -> None:
        """A node had a job's result, and was answered."""
        if not work.grant.is_trial:
            self.trace.jobs[work.grant.job_id].trained_to_the_end += polite

    def note_success(self, work: SimulatedAttempt) -> None:
        """Record that the server accepted a completion."""
        if work.grant.is_trial:
            return
        story = self.trace.jobs[work.grant.job_id]
        story.completions += 1
        story.done_ms = story.done_ms or self.agenda.now_ms()

    def note_lost(self) -> None:
        """A node found its lease lost, or gave it up for lost."""
        self.trace.lost_leases += 1

    def note_ended(self, work: SimulatedAttempt, machine: SimulatedMachine) -> float | None:
        """An attempt's time is over on this node; the share of its steps' time that was of use. None: a trial."""
        now_ms = self.agenda.now_ms()
        lived_ms = now_ms - (work.began_ms if work.booked_ms is None else work.booked_ms)
        work.booked_ms = now_ms
        self.billed_time.attempt_ms += lived_ms
        if work.grant.is_trial:
            return None
        story = self.trace.jobs[work.grant.job_id]
        story.attempt_ms += lived_ms
        start = work.grant.start_step if work.booked_step is None else work.booked_step
        work.booked_step = max(work.step_at(now_ms), work.committed, start)
        done = work.booked_step - start
        kept = max(0, work.committed - max(start, story.best_step))
        story.best_step = max(story.best_step, work.committed)
        self.billed_time.steps += done
        self.billed_time.useful_steps += kept
        self.billed_time.machines[machine.id].useful_steps += kept
        return kept / done if done else 0.0

    def note_beat(self, node: BatchedNode) -> None:
        """Record a heartbeat for the plot of a job's life."""
        if self.trace.keep_beats and node.work is not None:
            said = node.progress()
            seen = BeatSeen(self.agenda.elapsed_s(), said.job_id, node.work.grant.machine_id, said.step, said.phase)
            self.trace.beats.append(seen)

    # ---- the course of events ----

    def sample(self) -> None:
        """Look at the whole, again and again."""
        self.agenda.after(SAMPLE_S, self.sample)
        counts = self.counts()
        running = sum(fleet.running for fleet in self.manual)
        present = sum(len(fleet.present) for fleet in self.manual)
        self.trace.samples.append(
            QueueSample(self.agenda.elapsed_s(), counts.queued, counts.at_work, running, present - running)
        )
        if counts.queued + counts.at_work == 0 and self.done_at_s is None:
            self.done_at_s = self.agenda.elapsed_s()
