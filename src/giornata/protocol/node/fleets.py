"""Fleets, the health of machines, and the server's loops, as an operator sees them."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from giornata.domain.machines.health import MachineState
from giornata.protocol.model import MAX_COUNT, Message, Reply

MOST_NODES = 10_000
Nodes = Annotated[int, Field(ge=0, le=MOST_NODES)]


class InstanceStanding(StrEnum):
    """The state of an instance: as its provider says, or as the control plane decided."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    LEAVING = "leaving"  # it gets no more work
    ENDING = "ending"  # the provider was asked to end it, and lists it still
    RENEWING = "renewing"  # it gets no more work, and comes again as the settings are now


class FleetInstance(Reply):
    """One instance that the provider lists.

    `name` is what the provider calls it besides its id. `trouble` is why it does not run, in the provider's words;
    `outdated`: it is not as the settings say.
    """

    id: str
    name: str = ""
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
    """The last scaling decision and its reasons, with ids of instances.

    `stopped` says why no more nodes are requested although jobs wait: so many of them never came.
    """

    jobs: int = 0
    desired: int = 0
    leaving: tuple[str, ...] = ()
    ending: tuple[str, ...] = ()
    reallocate: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    stopped: str = ""


class FleetLimits(Reply):
    """Limits that an operator set for a fleet. They win over the settings. None: the settings hold."""

    min_nodes: int | None = None
    max_nodes: int | None = None
    max_price_micro_usd_per_hour: int | None = None


class ScaleFleet(Message):
    """`POST /v1/fleets/{name}/scale`. A field that is absent stays as it is; null goes back to the settings."""

    min_nodes: Nodes | None = Field(
        None, description="Minimum number of nodes at every hour. null: as the settings say."
    )
    max_nodes: Nodes | None = Field(
        None, description="Maximum number of nodes at every hour. null: as the settings say."
    )
    max_price_micro_usd_per_hour: Annotated[int, Field(ge=0, le=MAX_COUNT)] | None = Field(
        None,
        description="No further node is asked for while one costs more, in micro-dollars. null: as the settings say.",
    )


class FleetPrice(Reply):
    """The price of one more node of a fleet, from an instant on."""

    at: datetime
    micro_usd_per_hour: int


class Fleet(Reply):
    """`GET /v1/fleets/{name}` (root admin only).

    `trouble` is what the provider last refused, or why it could not be listed; `shortage` why fewer nodes run than
    are wanted. `outdated` names the settings that the instances do not have yet: they get them when the fleet is
    rolled, which goes on since `rolling_since`; `rolls`: it can be. Without `gives_nodes` machines join by
    themselves, and none can be asked for. The provider is asked nothing before `quiet_until`, because it wants it so.

    `min_nodes` and `most_nodes` are what holds now: by the settings and their windows, or by the `limits` that an
    operator set. An operator paused the fleet at `paused_since`: until it is resumed both are 0.

    `price_changes` are those of the last 90 days, the newest first, 50 at most. A list of fleets leaves them out.
    """

    name: str
    driver: str
    desired: int
    min_nodes: int | None = None
    most_nodes: int | None = None
    limits: FleetLimits = FleetLimits()
    price_micro_usd_per_hour: int | None = None
    price_changes: tuple[FleetPrice, ...] = ()
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
    paused_since: datetime | None = None
    quiet_until: datetime | None = None


class FleetPage(Reply):
    """`GET /v1/fleets` (root admin only)."""

    items: tuple[Fleet, ...]
    next: str | None = None


class HeldFailure(Reply):
    """A failure of the last day that is held against a machine. One that came with another of a kind weighs 0."""

    job_id: str
    reason: str
    at: datetime
    weight: float


class Machine(Reply):
    """The health of a machine with jobs of one kind."""

    machine_id: str
    kind: str
    state: str = Field(
        description="ok, probation (a canary first, or one job at a time) or quarantined (no work).",
        json_schema_extra={"enum": [str(state) for state in MachineState]},
    )
    reason: str = Field("", description="Reason for the state.")
    since: datetime
    until: datetime | None = Field(None, description="Instant at which the quarantine ends by itself.")
    strikes: float = Field(description="Strikes as of now. Half of them are forgotten in each half-life.")
    quota: int = Field(description="Maximum number of attempts that the machine may have started within an hour.")
    successes_in_a_row: int
    quarantined_times: int
    by_hand: bool = Field(
        False, description="true: an operator quarantined the machine, and an operator has to release it."
    )
    failures: tuple[HeldFailure, ...] = ()


class MachinePage(Reply):
    """The reply of `GET /v1/machines`: a page of machines."""

    items: tuple[Machine, ...]
    next: str | None = None


class QuarantineMachine(Message):
    """The body of `POST /v1/machines/{machine_id}/quarantine`."""

    reason: str = Field("by hand", min_length=1, max_length=500)


class ServerLoop(Reply):
    """A loop of the server that answers: what it did last, and what is wrong with it."""

    name: str
    every_s: float = Field(description="Seconds between two turns of a loop that is well.")
    in_trouble: bool = Field(description="True: the loop is late, or its last turn failed.")
    late: bool = Field(description="True: the loop has not succeeded for so long that an operator should look.")
    vital: bool = Field(description="True: a server is not ready while the loop is late.")
    runs: int = Field(0, description="Number of turns since the start of the server.")
    errors: int = Field(0, description="Number of turns that failed since the start of the server.")
    errors_in_a_row: int = Field(0, description="Number of turns that failed since the last one that succeeded.")
    last_success_age_s: float | None = Field(
        None, description="Seconds since the last turn that succeeded; null before the first one."
    )
    last_done: str = Field("", description="Last change that the loop made, in words or as a number.")
    last_done_age_s: float | None = Field(
        None, description="Seconds since that change; null while the loop has changed nothing."
    )
    last_error: str = Field("", description="Last error of the loop, also when it has succeeded since.")


class ServerLoopPage(Reply):
    """The loops of the server that answers, those in trouble first."""

    items: tuple[ServerLoop, ...]
