"""A node says what it found out about itself."""

from giornata.control.context import Caller, Context
from giornata.control.permissions import require_node
from giornata.control.sighting import sighting
from giornata.domain.errors import Conflict
from giornata.protocol.node_checks import ChecksNoted, NodeChecks


def note_checks(ctx: Context, caller: Caller, checks: NodeChecks) -> ChecksNoted:
    """Keep the latest. Raises Forbidden for a key that is no node's, and Conflict for another project's node id."""
    require_node(caller)
    now_ms = ctx.clock.now_ms()
    node = checks.node
    kept = checks.model_dump(mode="json", include={"figures", "shortcomings", "leaving"}) | {"at_ms": now_ms}
    with ctx.store.begin() as tx:
        row = tx.nodes.see_each([sighting(caller, node, kinds=checks.kinds)], at_ms=now_ms)[node.node_id]
        if row.project_id != caller.project_id:
            raise Conflict(f"the node id {node.node_id} belongs to another project; draw another one")
        tx.nodes.note_checks(node.node_id, kept)
    return ChecksNoted(drain=row.draining)
