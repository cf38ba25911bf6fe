"""The nodes of a fleet that are there, by what was heard of them."""

from collections.abc import Sequence

from giornata.control.context import Context
from giornata.control.ports.fleet_store import FleetNode


def seen_nodes(ctx: Context, fleet: str) -> Sequence[FleetNode]:
    """Those heard of lately, less those that another process of their name has replaced."""
    since_ms = ctx.clock.now_ms() - round(ctx.policy.node_gone_after_s * 1000)
    with ctx.store.read() as tx:
        nodes = tx.fleets.nodes(fleet, seen_since_ms=since_ms)
    begun_ms: dict[tuple[str, str], int] = {}
    for node in nodes:
        place = (node.machine_id, node.name)
        begun_ms[place] = max(begun_ms.get(place, 0), node.first_seen_at_ms)
    return [node for node in nodes if begun_ms[node.machine_id, node.name] <= node.last_seen_at_ms]
