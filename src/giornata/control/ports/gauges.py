"""The store's interface for the operator's gauges."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from giornata.protocol.admin import NodeState


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """The whole installation at one moment. `oldest_queued_at_ms` is None when the queue is empty."""

    jobs: Mapping[tuple[str, str], int]  # by (kind, state)
    oldest_queued_at_ms: int | None
    nodes: Mapping[NodeState, int]
    attempts_ended: Mapping[str, int]  # by reason, since the installation began
    spend_micro_usd: int = 0  # by all attempts, since the installation began
    machines: Mapping[str, int] = field(default_factory=dict)  # by state, each by its worst
    quarantines: int = 0  # since the installation began
    reallocations: Mapping[str, int] = field(default_factory=dict)  # by fleet, since the installation began
    fleet_desired: Mapping[str, int] = field(default_factory=dict)  # by fleet
    fleet_instances: Mapping[tuple[str, str], int] = field(default_factory=dict)  # by (fleet, state), those listed


class GaugeQueries(Protocol):
    """Counts over all projects that never tell who owns what."""

    def now(self, *, seen_since_ms: int) -> Gauges:
        """Return the counts now. Nodes not heard of since `seen_since_ms` count as gone."""
