"""What a provider asks for an hour of a node, for each of the fleet's instances."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from giornata.control.governed_fleet import GovernedFleet
from giornata.control.ports.fleet import PricesOffers
from giornata.domain.errors import FleetUnavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class HeardPrices:
    """Micro-dollars an hour: of one more node, and by what is rented (`Instance.offer`)."""

    of_one_more: int
    by_offer: Mapping[str, int] = field(default_factory=dict)

    def of(self, offer: str) -> int:
        """The price of an instance."""
        return self.by_offer.get(offer, self.of_one_more)


def heard_prices(governed: GovernedFleet) -> HeardPrices | None:
    """None: the provider cannot say just now, and the prices heard last stand."""
    fleet = governed.fleet
    try:
        by_offer = fleet.prices() if isinstance(fleet, PricesOffers) else {}
        return HeardPrices(of_one_more=fleet.price().micro_usd_per_hour, by_offer=by_offer)
    except FleetUnavailable:
        return None
