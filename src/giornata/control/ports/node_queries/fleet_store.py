"""The store's interface for fleets: what is believed of them, and what was decided.

Every method runs in the caller's transaction. Instants are epoch milliseconds of the server's clock.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from giornata.domain.fleets.starts import NodeStart


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRow:
    """A fleet as last decided and heard.

    `desired` is what the provider is to have; `told` what it has surely been asked for, None when that is not known,
    and `told_at_ms` when it last heard such a number.
    `trouble` is what it last refused, `unlisted` why it could not be listed, `shortage` why fewer nodes run than are
    wanted, and `outdated` what of its instances is not as the settings say. It is not asked before `quiet_until_ms`.
    `seen_at_ms` is when it was last listed, 0: never. At `awaited_at_ms` jobs last waited for every node that had not
    started. An operator paused the fleet at `paused_at_ms`, and set `limits`: see `domain.fleet_limits`.
    """

    name: str
    driver: str
    desired: int
    told: int | None
    plan: Mapping[str, Any]
    trouble: str
    price_micro_usd_per_hour: int | None
    needed_at_ms: int | None
    changed_at_ms: int | None
    seen_at_ms: int
    unlisted: str
    shortage: str
    outdated: Sequence[str]
    examined_at_ms: int | None
    roll_since_ms: int | None
    quiet_until_ms: int | None
    awaited_at_ms: int | None
    paused_at_ms: int | None
    limits: Mapping[str, int]
    told_at_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceRow:
    """An instance as last listed. `ended_at_ms`: asked of the provider; `gone_at_ms`: it is listed no more.

    `drained_at_ms`: the provider knows that it goes first. `outdated`: it is not as the settings say; `renewing`: it
    leaves for that, and another comes in its place. `restarts`, `began_at_ms` and `failed_starts`: see
    `giornata.domain.fleets.starts.Starts`. `offer` is what the provider rents there, in its words.
    """

    fleet: str
    id: str
    machine_id: str | None
    name: str
    state: str
    price_micro_usd_per_hour: int
    first_listed_at_ms: int
    last_listed_at_ms: int
    running_at_ms: int | None
    leaving_at_ms: int | None
    leaving_reason: str
    ended_at_ms: int | None
    gone_at_ms: int | None
    trouble: str = ""
    drained_at_ms: int | None = None
    outdated: bool = False
    renewing: bool = False
    restarts: int = 0
    began_at_ms: int | None = None
    failed_starts: int = 0
    offer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BilledRow:
    """An interval in which the provider bills an instance at one price. `to_ms` is None while it goes on."""

    fleet: str
    instance_id: str
    seq: int
    from_ms: int
    to_ms: int | None
    price_micro_usd_per_hour: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetNode:
    """A node of a fleet. `live` counts the attempts that it holds; without any, the last ended at `idle_since_ms`.

    `joint_key` is of the jobs that it is at, where it has several places and others may join them. `start`: how far
    its start is.
    """

    id: str
    project_id: str
    machine_id: str
    name: str
    instance_id: str | None
    kinds: tuple[str, ...]
    vram_bytes: int | None
    places: int
    draining: bool
    first_seen_at_ms: int
    last_seen_at_ms: int
    idle_since_ms: int
    live: int
    joint_key: str | None = None
    start: NodeStart = NodeStart.DONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """Queued jobs that are alike and have about the same deadline."""

    kind: str
    min_vram_bytes: int
    project_id: str
    deadline_at_ms: int
    jobs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Joinable:
    """Queued jobs that are alike and may join others at work."""

    kind: str
    min_vram_bytes: int
    project_id: str
    joint_key: str
    jobs: int


class Fleets(Protocol):
    """Fleets, their instances, and the nodes on them."""

    def get(self, name: str) -> FleetRow | None:
        """Return the fleet's row as it is just now; None when the fleet was never configured."""

    def lock(self, name: str) -> FleetRow | None:
        """Return the row, held until the transaction ends."""

    def all(self) -> Sequence[FleetRow]:
        """Return all fleets by name; also those that are configured no more."""

    def put(self, name: str, *, driver: str, at_ms: int, desired: int) -> None:
        """Insert the row, unless it is there."""

    def update(self, name: str, **columns: Any) -> None:
        """Set columns of the fleet's row, by their names. Does nothing to a fleet without a row."""

    def instances(self, fleet: str) -> Sequence[InstanceRow]:
        """Return the fleet's instances that are not gone, by id."""

    def troubles(self) -> Sequence[tuple[str, str, int]]:
        """Return (fleet, trouble, number) of what the providers say of instances that are not gone."""

    def gone_since(self, fleet: str, *, since_ms: int) -> Sequence[InstanceRow]:
        """Return the fleet's instances that went since then."""

    def put_instance(self, instance: InstanceRow) -> None:
        """Insert the row, or write what was listed over it; what was decided about the instance stays."""

    def update_instances(self, fleet: str, ids: Collection[str], **columns: Any) -> None:
        """Set the same columns of these instances of the fleet, by their names."""

    def billed(self, fleet: str, ids: Collection[str]) -> Mapping[str, BilledRow]:
        """Return the latest interval of each of these instances that has one."""

    def put_billed(self, intervals: Sequence[BilledRow]) -> None:
        """Insert the intervals, or write their ends and prices over them."""

    def nodes(self, fleet: str, *, seen_since_ms: int) -> Sequence[FleetNode]:
        """Return the fleet's nodes heard of since then, the latest first."""

    def drain(self, node_ids: Collection[str], *, draining: bool = True) -> None:
        """Give these nodes no more work, and tell them to leave; or take that back."""

    def leases_on(self, fleet: str, instance_ids: Collection[str]) -> Sequence[str]:
        """Return ids of the attempts on these instances that neither ended nor lapsed."""

    def unfit_machines(self) -> frozenset[str]:
        """Return machines that get no jobs, of one kind at least."""

    def add_reallocation(
        self, fleet: str, instance_id: str, *, machine_id: str | None, reason: str, at_ms: int
    ) -> None:
        """Note that the provider was asked at `at_ms` to replace this instance, on this machine, and why."""

    def reallocations(self, fleet: str, *, since_ms: int) -> int:
        """Return how many reallocations of the fleet there were since then."""

    def add_price(self, fleet: str, *, price_micro_usd_per_hour: int, at_ms: int, kept_since_ms: int) -> None:
        """Note that one more node of the fleet costs this from now on, and forget prices from before
        `kept_since_ms`.
        """

    def prices(self, fleet: str, *, most: int) -> Sequence[tuple[int, int]]:
        """Return the latest changes of the price as (instant, micro-dollars an hour), the newest first."""

    def joinable(self, room: Mapping[str, int], *, queued_since_ms: int) -> Sequence[Joinable]:
        """Return for each joint key those among the next `room` jobs for any machine that are queued since then or
        later.
        """

    def deadlines(self) -> Sequence[Deadline]:
        """Return the jobs queued for any machine that have a deadline, in steps of five minutes."""
