"""A node says what it found out about itself."""

from giornata.control.context import Caller, Context
from giornata.control.known_node import known_node, refusal_of
from giornata.control.sighting import sighting
from giornata.domain.starts import NodeStart
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
        tx.nodes.note_checks(node.node_id, kept, start=_start(checks))
    return ChecksNoted(drain=row.draining)


def _start(checks: NodeChecks) -> NodeStart:
    """A node checks its machine first, starts its engine next, and only then asks for work."""
    if checks.leaving:
        return NodeStart.FAILED
    return NodeStart.UNDER_WAY if checks.node.engine_pid is None else NodeStart.DONE
