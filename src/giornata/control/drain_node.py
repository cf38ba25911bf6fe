"""Take a node out of work because an operator wants it, and take that back.

A drained node gets no more jobs. It writes a checkpoint and gives its jobs back, then it leaves. Where its provider
was asked for it, the instance is ended after that, so that nobody is billed for it.
"""

from giornata.control.context import Caller, Context
from giornata.control.fleet_views import NodesOn
from giornata.control.list_nodes import node_reply
from giornata.control.machine_names import machine_names
from giornata.control.permissions import require_root_admin
from giornata.control.ports.fleet_store import InstanceRow
from giornata.control.ports.records import NodeRecord
from giornata.control.ports.store import Transaction
from giornata.control.texts import is_id
from giornata.domain.errors import Conflict, NotFound
from giornata.protocol.admin import Node

BY_HAND = "an operator drained its node"
HEARD_WITHIN_MS = 24 * 3_600_000


def drain_node(ctx: Context, caller: Caller, node_id: str) -> Node:
    """No more jobs for the node; what it is at goes on elsewhere. May be repeated.

    Raises Forbidden, NotFound, and Conflict for a process that another one took the place of.
    """
    require_root_admin(caller)
    now_ms = ctx.clock.now_ms()
    with ctx.store.begin() as tx:
        node = _node(tx, node_id)
        instance = _instance(tx, ctx, node, at_ms=now_ms)
        if instance is not None and (instance.leaving_at_ms is None or instance.renewing):
            leaves = {"leaving_at_ms": now_ms, "leaving_reason": BY_HAND, "renewing": False}
            tx.fleets.update_instances(node.fleet, [instance.id], **leaves)
        tx.fleets.drain([node_id])
        return _shown(tx, ctx, caller, node_id)


def undrain_node(ctx: Context, caller: Caller, node_id: str) -> Node:
    """The node may have jobs again. May be repeated.

    Raises Forbidden, NotFound, and Conflict when the node has left, or leaves for another reason than an operator's.
    """
    require_root_admin(caller)
    now_ms = ctx.clock.now_ms()
    with ctx.store.begin() as tx:
        node = _node(tx, node_id)
        if node.last_seen_at_ms < now_ms - round(ctx.policy.node_gone_after_s * 1000):
            raise Conflict(f"{node_id} has left; a node that is started anew gets jobs")
        instance = _instance(tx, ctx, node, at_ms=now_ms)
        if instance is not None and instance.leaving_at_ms is not None:
            _require_ours(node_id, instance)
            stays = {"leaving_at_ms": None, "leaving_reason": "", "drained_at_ms": None}
            tx.fleets.update_instances(node.fleet, [instance.id], **stays)
        tx.fleets.drain([node_id], draining=False)
        return _shown(tx, ctx, caller, node_id)


def _node(tx: Transaction, node_id: str) -> NodeRecord:
    node = tx.job_reads.node(node_id) if is_id(node_id) else None
    if node is None:
        raise NotFound(f"there is no node {node_id}")
    if node.replaced:
        raise Conflict(f"{node_id} is a process that is gone: a newer one on {node.machine_id} took its place")
    return node


def _instance(tx: Transaction, ctx: Context, node: NodeRecord, *, at_ms: int) -> InstanceRow | None:
    """The instance that the node is on, of a fleet whose provider can be asked to end it; its fleet's row is held."""
    governed = ctx.fleets.get(node.fleet)
    if governed is None or not governed.fleet.limits.gives_nodes or tx.fleets.lock(node.fleet) is None:
        return None
    there = NodesOn(tx.fleets.nodes(node.fleet, seen_since_ms=at_ms - HEARD_WITHIN_MS))
    found = ((each, there.of(each)) for each in tx.fleets.instances(node.fleet))
    return next((each for each, on_it in found if on_it is not None and on_it.id == node.id), None)


def _require_ours(node_id: str, instance: InstanceRow) -> None:
    """Raises Conflict unless it leaves because an operator drained it, and can stay."""
    if instance.ended_at_ms is not None:
        raise Conflict(f"{node_id} cannot stay: its provider was asked to end {instance.id}")
    if instance.leaving_reason != BY_HAND:
        raise Conflict(f"{node_id} was not drained by an operator; {instance.id} leaves: {instance.leaving_reason}")


def _shown(tx: Transaction, ctx: Context, caller: Caller, node_id: str) -> Node:
    silent_since_ms = ctx.clock.now_ms() - round(ctx.policy.node_gone_after_s * 1000)
    return node_reply(_node(tx, node_id), machine_names(tx, ctx, caller), silent_since_ms)
