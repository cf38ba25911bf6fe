"""Runs of a scenario under both policies, and the gain over the ancestor: by policy and by trainer."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

from benchmarks.simulate.ancestor import AncestorPlane
from benchmarks.simulate.ancestor_operator import Autoscaler, Operator
from benchmarks.simulate.regret import regret_of
from giornata.simulate import run as simulator
from giornata.simulate.batches import RequestBatches
from giornata.simulate.node import ModeledNode
from giornata.simulate.plane import SimulatedControlPlane
from giornata.simulate.rented.trainer import ANCESTOR_TRAINER
from giornata.simulate.results import report
from giornata.simulate.results.story import JobTrace
from giornata.simulate.scenario import Scenario
from giornata.simulate.world import Simulation

PolicyName = Literal["giornata", "ancestor"]

BEAT_S, POLL_S, DEFAULT_EVERY = 30.0, 5.0, 100
FIGURES = ("usd_per_job", "worst_job_min", "lost_and_idle_share")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRun(simulator.SimulationResult):
    """A run, with the name of its policy. `by_hand` counts the actions of the modeled operator."""

    policy: PolicyName
    by_hand: int


class AncestorNode(ModeledNode):
    """The ancestor's worker asks for work at once, and never gives up a job by its own clock."""

    checks_s = 0.0

    def unheard(self) -> None:
        """Go on: a heartbeat without an answer changes nothing."""


@contextmanager
def played(
    scenario: Scenario, *, seed: int = 0, policy: PolicyName = "giornata", keep_beats: bool = False
) -> Iterator[PolicyRun]:
    """Play a scenario to its end under a policy."""
    if policy == "ancestor":
        yield _played_by_ancestor(scenario, seed=seed, keep_beats=keep_beats)
        return
    with simulator.played(scenario, seed=seed, keep_beats=keep_beats) as ran:
        yield _policy_run(ran, policy, by_hand=0)


def _played_by_ancestor(scenario: Scenario, *, seed: int, keep_beats: bool) -> PolicyRun:
    world = Simulation(scenario, seed=seed, new_node=AncestorNode)
    world.trace.keep_beats = keep_beats
    every = scenario.every if isinstance(scenario.every, int) else DEFAULT_EVERY
    plane = AncestorPlane(world.agenda, seed=seed, steps=scenario.steps, every=every)
    world.plane = cast(SimulatedControlPlane, plane)
    world.batches = RequestBatches(
        world.agenda,
        world.plane,
        beat_s=BEAT_S,
        poll_s=POLL_S,
        phases=scenario.phases,
        seed=seed,
        note_beat=world.note_beat,
    )
    world.counts = plane.counts
    for number in range(scenario.jobs):
        job_id = f"job_{number + 1:06d}"
        plane.submit(job_id)
        world.trace.jobs[job_id] = JobTrace(id=job_id, project_id="all", steps=scenario.steps)
    (fleet,) = world.manual
    Autoscaler(world.agenda, plane, fleet, most=scenario.nodes).begin()
    operator = Operator(world.agenda, plane, fleet, waiting=lambda: world.batches.waiting)
    operator.begin()
    return _policy_run(simulator.run(world, None), "ancestor", by_hand=operator.by_hand)


def _policy_run(ran: simulator.SimulationResult, policy: PolicyName, *, by_hand: int) -> PolicyRun:
    known = {field.name: getattr(ran, field.name) for field in dataclasses.fields(ran)}
    return PolicyRun(**known, policy=policy, by_hand=by_hand)


def summary(run: PolicyRun) -> dict[str, Any]:
    """Return the simulator's object of a run, with its policy, its regret, and every action by hand."""
    told = report.summary(run)
    regret = {name: round(value, 4) for name, value in asdict(regret_of(run)).items()}
    return {**told, "policy": run.policy, "by_hand": told["by_hand"] + run.by_hand, "regret": regret}


def comparable(scenario: Scenario) -> bool:
    """Return whether the ancestor's policy can play a scenario: it knows one fleet and one project."""
    return len(scenario.offers) == 1 and scenario.projects == 1


def gains_of(scenario: Scenario, told: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the gains of a run under our policy with the summary `told`. The ancestor plays it once or twice.

    `policy`: both policies with the scenario's trainer. `trainer`: the ancestor's trainer and the scenario's, both
    under the ancestor's policy; absent where the trainers are the same.
    """
    theirs = _told_of_ancestor(scenario, told["seed"])
    gains = {"policy": _gain(told, over=theirs)}
    if scenario.trainer != ANCESTOR_TRAINER:
        with_theirs = dataclasses.replace(scenario, trainer=ANCESTOR_TRAINER)
        gains["trainer"] = _gain(theirs, over=_told_of_ancestor(with_theirs, told["seed"]))
    return gains


def _told_of_ancestor(scenario: Scenario, seed: int) -> Mapping[str, Any]:
    with played(scenario, seed=seed, policy="ancestor") as run:
        return summary(run)


def _gain(told: Mapping[str, Any], *, over: Mapping[str, Any]) -> dict[str, Any]:
    """Return (before, after) of each figure, and the change of a job's cost."""
    pairs = {name: [over[name], told[name]] for name in FIGURES}
    return {**pairs, "cost_change": round(told["usd_per_job"] / over["usd_per_job"] - 1, 4)}


def gain_rows(told: Mapping[str, Any]) -> Sequence[str]:
    """Return a line for the gain by policy alone, and one for the gain by the trainer alone."""
    names = {
        "policy": "policy alone (the ancestor's policy, same trainer)",
        "trainer": "trainer alone (the ancestor's trainer, both under its policy)",
    }
    return [f"{names[what]}: {_gain_text(gain)}" for what, gain in told.get("gained", {}).items()]


def _gain_text(gain: Mapping[str, Any]) -> str:
    usd, worst, lost = gain["usd_per_job"], gain["worst_job_min"], gain["lost_and_idle_share"]
    return (
        f"${usd[0]:.4f} → ${usd[1]:.4f} a job ({gain['cost_change']:+.1%}), "
        f"worst job {worst[0]:.0f} → {worst[1]:.0f} min, lost and idle {lost[0]:.1%} → {lost[1]:.1%}"
    )
