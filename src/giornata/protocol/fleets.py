"""Fleets, as an operator sees them."""

from datetime import datetime
from enum import StrEnum

from giornata.protocol.model import Reply


class InstanceStanding(StrEnum):
    """Where an instance is: as its provider says, or as it was decided."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    LEAVING = "leaving"  # it gets no more work
    ENDING = "ending"  # the provider was asked to end it, and lists it still


class FleetInstance(Reply):
    """One instance that the provider lists."""

    id: str
    state: InstanceStanding
    machine_id: str | None = None
    node_id: str | None = None
    jobs: int = 0
    reason: str = ""
    price_micro_usd_per_hour: int = 0
    first_listed_at: datetime
    running_at: datetime | None = None


class FleetPlan(Reply):
    """What was decided last, and why. Names are ids of instances."""

    jobs: int = 0
    desired: int = 0
    leaving: tuple[str, ...] = ()
    ending: tuple[str, ...] = ()
    reallocate: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()


class Fleet(Reply):
    """`GET /v1/fleets/{name}` (root admin only). `trouble` is what the provider last refused."""

    name: str
    driver: str
    desired: int
    most_nodes: int | None = None
    price_micro_usd_per_hour: int | None = None
    trouble: str = ""
    plan: FleetPlan
    instances: tuple[FleetInstance, ...] = ()
    listed_at: datetime
    changed_at: datetime | None = None
    needed_at: datetime | None = None


class FleetPage(Reply):
    """`GET /v1/fleets` (root admin only)."""

    items: tuple[Fleet, ...]
    next: str | None = None
