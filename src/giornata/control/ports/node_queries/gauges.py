"""The store's interface for the operator's gauges."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from giornata.control.ports.user_queries.money_store import FleetTime
from giornata.protocol.project.admin import NodeState


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureGauges:
    """The pictures that have not ended, and the live leases of pictures. `paused` are those of paused orders.

    `oldest_queued_at_ms` is when the oldest order with a queued picture was submitted; None when no picture waits.
    """

    queued: int = 0
    paused: int = 0
    leased: int = 0
    oldest_queued_at_ms: int | None = None
    leases: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxGauges:
    """Instants of the oldest waiting event and delivery of webhooks. None: nothing waits.

    `oldest_event_at_ms` is when the oldest event happened that is not turned into deliveries; `oldest_due_at_ms` is
    since when the oldest delivery is due. Webhooks whose receivers fail are left out of the second: they wait for
    their receivers.
    """

    oldest_event_at_ms: int | None = None
    oldest_due_at_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedTotals:
    """Sums over attempts that have ended.

    `steps_lost` are those of `steps_done` that no checkpoint has, so that another attempt did them again.
    """

    by_reason: Mapping[str, int] = field(default_factory=dict)
    steps_done: int = 0
    steps_lost: int = 0

    def plus(self, more: "EndedTotals") -> "EndedTotals":
        """Return the sums over the attempts of both."""
        return EndedTotals(
            by_reason=Counter(self.by_reason) + Counter(more.by_reason),
            steps_done=self.steps_done + more.steps_done,
            steps_lost=self.steps_lost + more.steps_lost,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """The whole installation at one moment. `oldest_queued_at_ms` is None when the queue is empty.

    What was ended and spent since the installation began is added by `control.monitoring.read_gauges`.
    """

    jobs: Mapping[tuple[str, str], int]  # by (kind, state)
    oldest_queued_at_ms: int | None
    oldest_queued: tuple[str, str] | None = None  # its id and its project
    nodes: Mapping[NodeState, int]
    ended: EndedTotals = field(default_factory=EndedTotals)
    spend_micro_usd: int = 0  # by all attempts, since the installation began
    machines: Mapping[str, int] = field(default_factory=dict)  # by state, each by its worst
    quarantines: int = 0  # since the installation began
    reallocations: Mapping[str, int] = field(default_factory=dict)  # by fleet, since the installation began
    fleet_desired: Mapping[str, int] = field(default_factory=dict)  # by fleet
    fleet_instances: Mapping[tuple[str, str], int] = field(default_factory=dict)  # by (fleet, state), those listed
    pictures: PictureGauges = field(default_factory=PictureGauges)
    outbox: OutboxGauges = field(default_factory=OutboxGauges)
    audits: Mapping[str, int] = field(default_factory=dict)  # replay audits by state
    fleet_time: Sequence[FleetTime] = ()  # of the last day, as the loop `fleet-time` added it up


class GaugeQueries(Protocol):
    """Counts over all projects. Of all jobs only the oldest in the queue is named."""

    def now(self, *, seen_since_ms: int) -> Gauges:
        """Return the counts now. Nodes not heard of since `seen_since_ms` count as gone."""

    def attempts_ended(self, *, from_ms: int, before_ms: int | None) -> EndedTotals:
        """Return the sums over attempts that ended from one instant to another; None: up to now."""
