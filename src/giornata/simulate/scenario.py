"""A scenario consists of jobs, a fleet, a trainer, and troubles with their times."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from giornata.control.policy import Policy
from giornata.domain.fleets.fleet_plan import ScalingPolicy
from giornata.simulate.rented.provider import SimulatedOffer
from giornata.simulate.rented.trainer import SimulatedTrainer


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFault:
    """Something that happens once, `at_s` after the beginning.

    `server-away`, `provider-away`: for `for_s`. `region-lost`: a `share` of all instances is gone at once. `evening`:
    a `share` of all instances leaves one after the other within `for_s`, as their owners come home. `sold-out`: for
    `for_s` the provider answers, and has no machine to give.
    """

    kind: Literal["server-away", "provider-away", "region-lost", "evening", "sold-out"]
    at_s: float
    for_s: float = 0.0
    share: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Goals:
    """The goals of a run under Giornata's policy; shares are of the billed seconds."""

    lost_and_idle: float | None = None
    most_attempts_on_broken: int | None = None
    peak_requests_per_node_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything that a run depends on but its seed.

    `every` is the spec's checkpointing_steps; `phases` see `RequestBatches`. `slowest_loop_s`: the server's quick
    loops and those of fleets are run no more often than this, and the others that look at every node four times more
    seldom, because each turn costs as much here as it does there, and many hours are played.
    """

    name: str
    about: str
    jobs: int
    nodes: int
    steps: int
    trainer: SimulatedTrainer
    offers: tuple[SimulatedOffer, ...] = (SimulatedOffer(),)
    every: int | Literal["auto"] = "auto"
    projects: int = 1
    weights: tuple[int, ...] = ()  # how many of the jobs each project submits, one to another; empty: alike
    troubles: tuple[PlannedFault, ...] = ()
    policy: Policy = field(default_factory=Policy)
    scaling: ScalingPolicy = field(default_factory=ScalingPolicy)
    phases: int = 1
    slowest_loop_s: float = 10.0
    latest_h: float = 24 * 14
    goals: Goals = field(default_factory=Goals)
    spec: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def beat_s(self) -> float:
        """Seconds between the beats of a node."""
        return self.policy.lease_s / 3
