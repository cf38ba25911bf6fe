"""The nodes of a fleet that are there, by what was heard of them."""

from collections.abc import Sequence

from giornata.control.context import Context
from giornata.control.ports.fleet_store import FleetNode


def seen_nodes(ctx: Context, fleet: str) -> Sequence[FleetNode]:
    """Those heard of lately."""
    since_ms = ctx.clock.now_ms() - round(ctx.policy.node_gone_after_s * 1000)
    with ctx.store.read() as tx:
        return tx.fleets.nodes(fleet, seen_since_ms=since_ms)
