"""A node says what it found out about itself."""

from giornata.control.context import Caller, Context
from giornata.control.known_node import known_node, refusal_of
from giornata.control.sighting import sighting
from giornata.protocol.node_checks import ChecksNoted, NodeChecks


def note_checks(ctx: Context, caller: Caller, checks: NodeChecks) -> ChecksNoted:
    """Keep the latest. Raises Forbidden for a key that is not this node's, Conflict for another project's node id."""
    node, now_ms = known_node(caller, checks.node), ctx.clock.now_ms()
    kept = checks.model_dump(mode="json", include={"figures", "shortcomings", "leaving"}) | {"at_ms": now_ms}
    with ctx.store.begin() as tx:
        row = tx.nodes.see_each([sighting(caller, node, kinds=checks.kinds)], at_ms=now_ms)[node.node_id]
        refusal = refusal_of(tx, ctx, caller, checks.node, row, at_ms=now_ms)
        if refusal is not None:
            raise refusal
        tx.nodes.note_checks(node.node_id, kept)
    return ChecksNoted(drain=row.draining)
