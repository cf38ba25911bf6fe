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
    RENEWING = "renewing"  # it gets no more work, and comes again as the settings are now


class FleetInstance(Reply):
    """One instance that the provider lists. `trouble` is why it does not run, in the provider's words; `outdated`:
    it is not as the settings say."""

    id: str
    state: InstanceStanding
    machine_id: str | None = None
    node_id: str | None = None
    jobs: int = 0
    reason: str = ""
    trouble: str = ""
    outdated: bool = False
    price_micro_usd_per_hour: int = 0
    first_listed_at: datetime
    running_at: datetime | None = None


class FleetPlan(Reply):
    """What was decided last, and why. Names are ids of instances. `stopped` says why no more nodes are asked for
    although jobs wait: so many of them never came."""

    jobs: int = 0
    desired: int = 0
    leaving: tuple[str, ...] = ()
    ending: tuple[str, ...] = ()
    reallocate: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    stopped: str = ""


class Fleet(Reply):
    """`GET /v1/fleets/{name}` (root admin only).

    `trouble` is what the provider last refused, or why it could not be listed; `shortage` why fewer nodes run than
    are wanted. `outdated` names the settings that the instances do not have yet: they get them when the fleet is
    rolled, which goes on since `rolling_since`; `rolls`: it can be. Without `gives_nodes` machines join by
    themselves, and none can be asked for. The provider is asked nothing before `quiet_until`, because it wants it so.
    """

    name: str
    driver: str
    desired: int
    most_nodes: int | None = None
    price_micro_usd_per_hour: int | None = None
    trouble: str = ""
    shortage: str = ""
    outdated: tuple[str, ...] = ()
    rolls: bool = False
    gives_nodes: bool = True
    plan: FleetPlan
    instances: tuple[FleetInstance, ...] = ()
    listed_at: datetime | None = None
    changed_at: datetime | None = None
    needed_at: datetime | None = None
    rolling_since: datetime | None = None
    quiet_until: datetime | None = None


class FleetPage(Reply):
    """`GET /v1/fleets` (root admin only)."""

    items: tuple[Fleet, ...]
    next: str | None = None
