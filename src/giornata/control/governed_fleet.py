"""A fleet and what the operator wants of it."""

from dataclasses import dataclass, field

from giornata.control.ports.fleet import Fleet
from giornata.domain.fleet_plan import ScalingPolicy
from giornata.domain.node_checks import NodeThresholds


@dataclass(frozen=True, slots=True, kw_only=True)
class GovernedFleet:
    """`name` is what its nodes say (`NodeInfo.fleet`); `kinds` are the kinds of job that its nodes take."""

    name: str
    driver: str
    fleet: Fleet
    kinds: tuple[str, ...] = ("train",)
    vram_bytes: int | None = None  # of a node that is still to come, when the operator says it
    places: int = 1
    scaling: ScalingPolicy = field(default_factory=ScalingPolicy)
    thresholds: NodeThresholds = field(default_factory=NodeThresholds)
