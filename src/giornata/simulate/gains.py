"""What is gained over the ancestor, by policy alone and by the trainer alone: the same jobs, machines and seed."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from giornata.simulate.report import summary
from giornata.simulate.scenario import PolicyName, Scenario
from giornata.simulate.trainers import ANCESTOR_TRAINER
from giornata.simulate.world import played

FIGURES = ("usd_per_job", "worst_job_min", "lost_and_idle_share")


def comparable(scenario: Scenario) -> bool:
    """Whether the ancestor's policy can play it: it knows one fleet and one project."""
    return len(scenario.offers) == 1 and scenario.projects == 1


def gains_of(scenario: Scenario, told: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Of a run under our policy whose summary is `told`. The ancestor's policy is played once or twice for it.

    `policy`: both policies with the scenario's trainer. `trainer`: the ancestor's trainer and the scenario's, both
    under the ancestor's policy; absent where the trainers are the same.
    """
    theirs = _told(scenario, "ancestor", told["seed"])
    gains = {"policy": _gain(told, over=theirs)}
    if scenario.trainer != ANCESTOR_TRAINER:
        with_theirs = dataclasses.replace(scenario, trainer=ANCESTOR_TRAINER)
        gains["trainer"] = _gain(theirs, over=_told(with_theirs, "ancestor", told["seed"]))
    return gains


def _told(scenario: Scenario, policy: PolicyName, seed: int) -> Mapping[str, Any]:
    with played(scenario, seed=seed, policy=policy) as ran:
        return summary(ran)


def _gain(told: Mapping[str, Any], *, over: Mapping[str, Any]) -> dict[str, Any]:
    """(before, after) of each figure, and by what share a job became dearer."""
    pairs = {name: [over[name], told[name]] for name in FIGURES}
    return {**pairs, "cost_change": round(told["usd_per_job"] / over["usd_per_job"] - 1, 4)}
