"""The interface of the control plane to a provider of nodes. Each provider has one driver, in `giornata.fleets`.

Drivers keep nothing that matters: what is believed of a fleet lies in the store, and what is true of it is what the
provider lists. Every call may be repeated, and every call may fail: see `FleetUnavailable` and its neighbors.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable


class InstanceState(StrEnum):
    """The state of an instance at its provider. Only RUNNING is billed."""

    STARTING = "starting"  # a machine is sought, the image comes, the container is made
    RUNNING = "running"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A container, pod, process or virtual machine that is to be one node.

    `id` is the provider's; the node says it too (`NodeInfo.instance_id`), so that the two are found to be one.
    `machine_id` names the hardware, as far as the provider tells: it is what the node on it calls itself.
    `trouble` says why it does not run, or has ended before, in the provider's words; empty when all is well.
    `restarts` counts how often the node's process ended by itself in this place and was started again; None: the
    provider does not say. `cannot_start`: the provider says that the node's process cannot be started, or ends again
    and again.
    `offer` names what is rented where prices differ within a fleet: a GPU class, a cloud and its region.
    """

    id: str
    state: InstanceState
    name: str = ""
    machine_id: str | None = None
    running_since_ms: int | None = None  # epoch ms; None: the provider does not say
    trouble: str = ""
    restarts: int | None = None
    cannot_start: bool = False
    offer: str = ""  # empty: the provider does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The price of one running node, in micro-dollars an hour, and who says so."""

    micro_usd_per_hour: int
    source: str  # "provider", "settings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of the provider. None: it says nothing. `most_nodes_reason` says what `most_nodes` comes from."""

    most_nodes: int | None = None
    most_nodes_reason: str = ""
    gives_nodes: bool = True  # nodes come when they are asked for; otherwise only when their owners start them
    reallocations_per_minute: int | None = None
    excluded_after_reallocation_s: float = 0.0  # for how long a reallocated machine does not come back
    moves: bool = True  # what is reallocated comes back on another machine
    gone_has_ended: bool = False  # what is listed no more has ended: its leases need not run out
    nodes_say_their_price: bool = False  # nobody here knows what a node costs: its own word counts


class FleetDriver(Protocol):
    """Nodes of one provider under one scaling policy.

    Every method raises FleetUnavailable when the provider cannot be asked just now, and FleetRefused when it will
    not do it however often it is asked.
    """

    @property
    def limits(self) -> Limits:
        """The limits of the provider, as last heard."""

    def desired(self, nodes: int, *, leaving: Collection[str] = ()) -> None:
        """Have so many nodes from now on. Where there are more, `leaving` (instance ids) go first, and only when the
        provider can choose no better others; with enough of `leaving`, nobody else goes."""

    def list(self) -> Sequence[Instance]:
        """Return every instance that the provider has for this fleet, orphans too; whole, or an error."""

    def reallocate(self, instance_id: str, *, reason: str) -> None:
        """Have the instance end now, and another come in its place, on another machine where the provider can choose.

        Raises InstanceGone when it is not there any more: found out by listing, never taken from one answer.
        """

    def drain(self, instance_id: str) -> None:
        """Mark the instance as the first to go when the number falls, whoever lowers it: by the provider's own mark,
        if it has one.

        Nothing ends, and the number stays; the node is told by the server to give its jobs back.

        Raises InstanceGone.
        """

    def price(self) -> Price:
        """Return the price of one more node."""

    def close(self) -> None:
        """Let go of connections. Ends no node, except those that live in this process's care (local)."""


@runtime_checkable
class PricesOffers(Protocol):
    """A fleet whose instances are not all of one price, and whose provider says what each costs."""

    def prices(self) -> Mapping[str, int]:
        """Return micro-dollars an hour by `Instance.offer`. An offer that is not named here costs what `price` says.

        Raises as the methods of `FleetDriver` do.
        """


@runtime_checkable
class TellsShortage(Protocol):
    """A fleet whose provider says more than a listing does about why nodes do not come. Not every provider does."""

    def shortage(self) -> str:
        """Return why another number of instances runs than was asked for; empty when the provider says nothing.

        Asked only while there are too few or too many. Raises as the methods of `FleetDriver` do.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Outdated:
    """The differences between instances and settings: names of `settings`, and the ids of the instances.

    Settings without instances: what the provider would make next is not as the settings say.
    """

    settings: tuple[str, ...] = ()
    instances: frozenset[str] = frozenset()


@runtime_checkable
class Renews(Protocol):
    """A fleet whose provider keeps the settings of its instances, so that they can be older than the server's
    settings.

    A fleet without this has nothing to renew: its nodes are started with what the settings say, by the server or by a
    person.
    """

    @property
    def one_by_one(self) -> bool:
        """True when some can be renewed while others work. False: the provider restarts all of them at once."""

    def outdated(self) -> Outdated:
        """Return what differs from the settings, of instances that are to stay. Raises as other methods."""

    def renew(self, instance_ids: Collection[str]) -> None:
        """Have these come again as the settings are now; where it is not one by one, all of them. What the provider
        makes from now on is as the settings are now, also when no instance is named.

        None of them holds a job. The number stays. An instance that is renewed or gone is left alone: the call may be
        repeated. Raises as the methods of `FleetDriver`.
        """
