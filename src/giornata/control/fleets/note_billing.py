"""Note the intervals in which a provider bills an instance, and at what price.

One row stands for each interval at one price. A listing that changes nothing reads and writes nothing here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from giornata.control.context import GovernedFleet
from giornata.control.fleet_views import NodesOn
from giornata.control.ports.fleet import InstanceState, PricesOffers
from giornata.control.ports.node_queries.fleet_store import BilledRow, FleetNode, InstanceRow
from giornata.control.ports.store import Transaction
from giornata.domain.billing.costs import ended_about_ms
from giornata.domain.errors import FleetUnavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A listing: every instance as it is now, and as it was believed to be before. Gone instances are not in `now`.

    `listed_before_ms` is when the fleet was listed the time before. Nodes are heard of every `beat_ms`, by a server
    that listens since `awake_since_ms`. The provider last heard how many there are to be at `told_at_ms`.
    """

    fleet: str
    before: Mapping[str, InstanceRow]
    now: Mapping[str, InstanceRow]
    listed_before_ms: int
    at_ms: int
    beat_ms: int
    awake_since_ms: int
    told_at_ms: int | None


def note_billing(tx: Transaction, heard: Heard) -> None:
    """Begin, end and divide the intervals of the instances that changed since the listing before."""
    changed = {key for key in {*heard.before, *heard.now} if _billed(heard.before, key) != _billed(heard.now, key)}
    if not changed:
        return
    latest = tx.fleets.billed(heard.fleet, changed)
    nodes = NodesOn(tx.fleets.nodes(heard.fleet, seen_since_ms=heard.listed_before_ms - heard.beat_ms))
    rows: list[BilledRow] = []
    for key in sorted(changed):
        instance = heard.now.get(key) or heard.before[key]
        rows += _rows(heard, instance, latest.get(key), nodes.of(instance))
    tx.fleets.put_billed(rows)


def _billed(instances: Mapping[str, InstanceRow], instance_id: str) -> int | None:
    """Return the price at which the instance is billed; None: it is not billed."""
    instance = instances.get(instance_id)
    if instance is None or instance.state != InstanceState.RUNNING:
        return None
    return instance.price_micro_usd_per_hour


def _rows(
    heard: Heard, instance: InstanceRow, latest: BilledRow | None, node: FleetNode | None
) -> Iterator[BilledRow]:
    """Yield the rows that are to be written of one instance."""
    price = _billed(heard.now, instance.id)
    going_on = latest if latest is not None and latest.to_ms is None else None
    if price is None:
        if going_on is not None:
            yield replace(going_on, to_ms=max(going_on.from_ms, _ended_ms(heard, instance.id, node)))
    elif going_on is None:
        yield _begun(instance, latest, from_ms=_began_ms(heard, instance, latest, node), price=price)
    elif going_on.price_micro_usd_per_hour == 0:
        # The price was not known. The provider is taken to have asked the same from the beginning.
        yield replace(going_on, price_micro_usd_per_hour=price)
    elif going_on.price_micro_usd_per_hour != price:
        at_ms = max(going_on.from_ms, heard.at_ms)
        yield replace(going_on, to_ms=at_ms)
        yield _begun(instance, going_on, from_ms=at_ms, price=price)


def _begun(instance: InstanceRow, latest: BilledRow | None, *, from_ms: int, price: int) -> BilledRow:
    return BilledRow(
        fleet=instance.fleet,
        instance_id=instance.id,
        seq=0 if latest is None else latest.seq + 1,
        from_ms=from_ms,
        to_ms=None,
        price_micro_usd_per_hour=price,
    )


def _began_ms(heard: Heard, instance: InstanceRow, latest: BilledRow | None, node: FleetNode | None) -> int:
    """Return when the bill began: as the provider says, or when the instance was first listed as running.

    A node on it may have been heard before that.
    """
    began_ms = min(instance.running_at_ms or heard.at_ms, heard.at_ms)
    if latest is not None:
        return max(began_ms, latest.to_ms or 0)
    on_it = node is not None and node.instance_id == instance.id
    return min(began_ms, node.first_seen_at_ms) if node is not None and on_it else began_ms


def _ended_ms(heard: Heard, instance_id: str, node: FleetNode | None) -> int:
    heard_ms = 0 if node is None else node.last_seen_at_ms
    due_ms = heard_ms + heard.beat_ms
    asked_ms = heard.before[instance_id].ended_at_ms
    return ended_about_ms(
        there_ms=max(heard.listed_before_ms, heard_ms),
        gone_ms=heard.at_ms,
        # The intention is older than the call, by hours if the provider did not answer.
        asked_ms=None if asked_ms is None else max(asked_ms, heard.told_at_ms or 0),
        # A server that did not listen has not missed a heartbeat.
        missed_ms=due_ms if due_ms >= heard.awake_since_ms else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeardPrices:
    """Prices in micro-dollars an hour: of one more node, and by what is rented (`Instance.offer`)."""

    of_one_more: int
    by_offer: Mapping[str, int] = field(default_factory=dict)

    def of(self, offer: str) -> int:
        """Return the hourly price of an instance with this offer."""
        return self.by_offer.get(offer, self.of_one_more)


def heard_prices(governed: GovernedFleet) -> HeardPrices | None:
    """Ask the provider for its prices; None when it cannot say just now, and the prices heard last stand."""
    fleet = governed.fleet
    try:
        by_offer = fleet.prices() if isinstance(fleet, PricesOffers) else {}
        return HeardPrices(of_one_more=fleet.price().micro_usd_per_hour, by_offer=by_offer)
    except FleetUnavailable:
        return None
