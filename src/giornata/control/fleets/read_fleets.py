"""Read fleets as an operator sees them: what was decided and why, and what the provider has."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from giornata.control.access.permissions import require_root_admin
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.fleet_views import NodesOn, called, scaling_of
from giornata.control.fleets.provider_backoff import wants_quiet
from giornata.control.fleets.reconcile import unconfigured
from giornata.control.ports.fleet import Renews
from giornata.control.ports.node_queries.fleet_store import FleetNode, FleetRow, InstanceRow
from giornata.control.ports.node_queries.gauges import Gauges
from giornata.control.ports.store import Transaction
from giornata.control.timestamps import instant
from giornata.domain.errors import NotFound
from giornata.protocol.node.fleets import (
    Fleet,
    FleetInstance,
    FleetLimits,
    FleetPage,
    FleetPlan,
    FleetPrice,
    InstanceStanding,
)

NODES_SEEN_WITHIN_MS = 3_600_000
MOST_SAID = 3
MOST_PRICES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetInWords:
    """A fleet in a line: nodes wanted and there, and what is wrong."""

    name: str
    desired: int
    there: int
    paused: bool
    troubles: Sequence[str]


def list_fleets(ctx: Context, caller: Caller) -> FleetPage:
    """Return all fleets, also those that are configured no more and have instances still. Raises Forbidden."""
    require_root_admin(caller)
    with ctx.store.read() as tx:
        rows = _rows(tx, ctx)
        return FleetPage(items=tuple(_fleet(tx, ctx, row) for row in rows))


def read_fleet(ctx: Context, caller: Caller, name: str) -> Fleet:
    """Return the fleet of this name. Raises Forbidden, NotFound."""
    require_root_admin(caller)
    with ctx.store.read() as tx:
        for row in _rows(tx, ctx):
            if row.name == name:
                prices = tx.fleets.prices(name, most=MOST_PRICES)
                changes = tuple(FleetPrice(at=instant(at_ms), micro_usd_per_hour=price) for at_ms, price in prices)
                return _fleet(tx, ctx, row).model_copy(update={"price_changes": changes})
    raise NotFound(f"there is no fleet {name}")


def fleets_in_words(ctx: Context, caller: Caller, gauges: Gauges) -> Sequence[FleetInWords]:
    """Return of each fleet what is wanted, what is there, and what is wrong, in the words of `list_fleets`.

    However many instances there are, few rows are read: `gauges` has their counts. Raises Forbidden,
    Unavailable.
    """
    require_root_admin(caller)
    there: Counter[str] = Counter()
    for (name, _), count in gauges.fleet_instances.items():
        there[name] += count
    with ctx.store.read() as tx:
        rows, counted = tx.fleets.all(), defaultdict[str, Counter[str]](Counter)
        for name, trouble, count in tx.fleets.troubles():
            counted[name][trouble] = count
    return [
        FleetInWords(
            name=row.name,
            desired=row.desired,
            there=there[row.name],
            paused=row.paused_at_ms is not None,
            troubles=tuple(
                filter(None, [row.trouble or row.unlisted, _words_of(row, counted[row.name]), _stopped(row)])
            ),
        )
        for row in sorted(rows, key=lambda each: each.name)
        if row.name in ctx.fleets or there[row.name]
    ]


def _stopped(row: FleetRow) -> str:
    return FleetPlan.model_validate(row.plan or {}).stopped


def _rows(tx: Transaction, ctx: Context) -> Sequence[FleetRow]:
    rows = tx.fleets.all()
    left = [row for row in unconfigured(rows, ctx.fleets) if tx.fleets.instances(row.name)]
    return sorted([*(row for row in rows if row.name in ctx.fleets), *left], key=lambda row: row.name)


def _fleet(tx: Transaction, ctx: Context, row: FleetRow) -> Fleet:
    nodes = NodesOn(tx.fleets.nodes(row.name, seen_since_ms=ctx.clock.now_ms() - NODES_SEEN_WITHIN_MS))
    instances = tx.fleets.instances(row.name)
    governed = ctx.fleets.get(row.name)
    policy = None if governed is None else scaling_of(governed, row)
    fewest, most = (None, None) if policy is None else policy.bounds(ctx.clock.now_ms())
    return Fleet(
        name=row.name,
        driver=row.driver,
        desired=row.desired,
        min_nodes=fewest,
        most_nodes=most,
        limits=FleetLimits.model_validate(row.limits),
        price_micro_usd_per_hour=row.price_micro_usd_per_hour,
        trouble=row.trouble or row.unlisted,
        shortage=_shortage(row, instances),
        outdated=tuple(row.outdated),
        gives_nodes=governed is None or governed.fleet.limits.gives_nodes,
        rolls=governed is not None and isinstance(governed.fleet, Renews),
        plan=_plan(row, instances),
        instances=tuple(_instance(each, nodes.of(each)) for each in instances),
        listed_at=_instant(row.seen_at_ms or None),
        changed_at=_instant(row.changed_at_ms),
        needed_at=_instant(row.needed_at_ms),
        rolling_since=_instant(row.roll_since_ms),
        paused_since=_instant(row.paused_at_ms),
        quiet_until=_instant(row.quiet_until_ms if wants_quiet(row, ctx.clock.now_ms()) else None),
    )


def _plan(row: FleetRow, instances: Sequence[InstanceRow]) -> FleetPlan:
    """Return the plan as it was kept. In its reasons the name of an instance stands beside its id, where it has
    another one.
    """
    plan = FleetPlan.model_validate(row.plan or {})

    def with_names(reason: str) -> str:
        for each in instances:
            reason = reason.replace(each.id, called(each))
        return reason

    return plan.model_copy(update={"reasons": tuple(map(with_names, plan.reasons))})


def _instant(at_ms: int | None) -> datetime | None:
    return None if at_ms is None else instant(at_ms)


def _shortage(row: FleetRow, instances: Sequence[InstanceRow]) -> str:
    """Return the provider's words on the fleet and on instances that wait, or end again and again."""
    return _words_of(row, Counter(each.trouble for each in instances if each.trouble))


def _words_of(row: FleetRow, counted: "Counter[str]") -> str:
    said = [
        f"{count} times: {trouble}" if count > 1 else trouble for trouble, count in counted.most_common(MOST_SAID)
    ]
    return "; ".join(filter(None, [row.shortage, *said]))


def _instance(row: InstanceRow, node: FleetNode | None) -> FleetInstance:
    return FleetInstance(
        id=row.id,
        name=row.name,
        state=_standing(row),
        machine_id=row.machine_id,
        node_id=None if node is None else node.id,
        jobs=0 if node is None else node.live,
        reason=row.leaving_reason,
        trouble=row.trouble,
        outdated=row.outdated,
        price_micro_usd_per_hour=row.price_micro_usd_per_hour,
        first_listed_at=instant(row.first_listed_at_ms),
        running_at=_instant(row.running_at_ms),
    )


def _standing(row: InstanceRow) -> InstanceStanding:
    if row.ended_at_ms is not None:
        return InstanceStanding.ENDING
    if row.renewing:
        return InstanceStanding.RENEWING
    return InstanceStanding.LEAVING if row.leaving_at_ms is not None else InstanceStanding(row.state)
