"""Machines that join by themselves: `giornata node` with the fleet's key makes a machine a node of the fleet.

Nobody here can start, replace or end such a machine. What there is, is what was heard of.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pydantic import Field

from giornata.control.ports.fleet import Instance, Limits, Price
from giornata.domain.billing.money import MICRO_USD
from giornata.domain.errors import FleetRefused, InstanceGone
from giornata.fleets.opening import FleetDependencies, FleetOptions


class StaticOptions(FleetOptions):
    """Options of a fleet whose machines join by themselves."""

    price_usd_per_hour: float | None = Field(
        None,
        ge=0,
        le=1000,
        description="Price of each node in US dollars per hour. Default: the price that each node reports.",
    )


OPTIONS = StaticOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticFleet:
    """A fleet of machines that joined by themselves; see `giornata.control.ports.fleet.FleetDriver`."""

    name: str
    options: StaticOptions
    dependencies: FleetDependencies

    @property
    def limits(self) -> Limits:
        """The limits of a fleet that starts no nodes itself."""
        own_prices = self.options.price_usd_per_hour is None
        return Limits(
            most_nodes=0,
            gives_nodes=False,
            reallocations_per_minute=0,
            moves=False,
            nodes_say_their_price=own_prices,
        )

    def desired(self, nodes: int, *, leaving: Collection[str] = ()) -> None:
        """Fewer than there are is fine: those that are told to leave do. Raises FleetRefused for more."""
        del leaving
        there = len(self.list())
        if nodes > there:
            raise FleetRefused(f"{self.name} has the {there} machines that joined it; start giornata node on another")

    def list(self) -> Sequence[Instance]:
        """The nodes that were heard of lately."""
        return tuple(self.dependencies.seen(self.name))

    def reallocate(self, instance_id: str, *, reason: str) -> None:
        """Refuse the request: the machine is the user's own. Raises FleetRefused, InstanceGone."""
        self._must_be_there(instance_id)
        raise FleetRefused(f"{instance_id} is somebody's own machine and cannot be replaced from here ({reason})")

    def drain(self, instance_id: str) -> None:
        """Check that the node is there: the server tells the node, and no mark is set. Raises InstanceGone."""
        self._must_be_there(instance_id)

    def price(self) -> Price:
        """The price in the settings."""
        return Price(micro_usd_per_hour=round((self.options.price_usd_per_hour or 0) * MICRO_USD), source="settings")

    def close(self) -> None:
        """Do nothing: the fleet holds nothing."""

    def _must_be_there(self, instance_id: str) -> None:
        if instance_id not in {each.id for each in self.list()}:
            raise InstanceGone(f"no node of {self.name} that was heard of lately is {instance_id}")


def open_fleet(name: str, options: StaticOptions, dependencies: FleetDependencies) -> StaticFleet:
    """A fleet of those that join it."""
    return StaticFleet(name=name, options=options, dependencies=dependencies)
