"""List nodes, drain one, and take that back.

A drained node gets no more jobs. It writes a checkpoint, gives its jobs back, then leaves. Where its provider was
asked for the node, the instance is ended after that, so that its bill ends.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from giornata.control.access.machine_names import MachineNames, machine_names
from giornata.control.access.permissions import require_root_admin, require_scope
from giornata.control.audit_log.record import record_call
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.fleet_views import NodesOn
from giornata.control.pages import check_limit, decode_cursor, next_cursor
from giornata.control.ports.node_queries.fleet_store import FleetNode, InstanceRow
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.records import NodeRecord
from giornata.control.text_limits import is_id
from giornata.control.timestamps import instant
from giornata.domain.accounts.audit_log import AuditVerb
from giornata.domain.errors import Conflict, NotFound
from giornata.protocol.node.node_checks import NodeVerdict
from giornata.protocol.project.admin import Node, NodePage, NodeState, Scope

SHOWN_WHEN_GONE_MS = 3_600_000
BY_HAND = "an operator drained its node"
HEARD_WITHIN_MS = 24 * 3_600_000


def list_nodes(ctx: Context, caller: Caller, *, gone: bool, cursor: str | None, limit: int) -> NodePage:
    """Return nodes of the caller's project, of all projects for an admin of the installation; newest first.

    Nodes not heard of for an hour are left out unless `gone`. Raises Forbidden, InvalidInput.
    """
    require_scope(caller, Scope.JOBS_READ)
    check_limit(limit)
    now_ms = ctx.clock.now_ms()
    with ctx.store.read() as tx:
        rows = tx.job_reads.nodes(
            project_id=None if caller.is_root_admin else caller.project_id,
            seen_since_ms=None if gone else now_ms - SHOWN_WHEN_GONE_MS,
            before=decode_cursor(cursor),
            limit=limit,
            most_bytes=ctx.policy.max_page_bytes,
        )
        names = machine_names(tx, ctx, caller)
    following = next_cursor(rows, lambda node: (node.first_seen_at_ms, node.id))
    silent_since_ms = now_ms - round(ctx.policy.node_gone_after_s * 1000)
    return NodePage(items=tuple(node_reply(node, names, silent_since_ms) for node in rows.items), next=following)


def node_reply(node: NodeRecord, names: MachineNames, silent_since_ms: int) -> Node:
    """Return the node as the key's owner may see it. A node last heard of before `silent_since_ms` is gone."""
    shown = names.node(node_id=node.id, machine_id=node.machine_id, name=node.name)
    operators = shown.node_id != node.id  # of the caller's project, and on a machine of the operator's
    return Node(
        id=shown.node_id,
        machine_id=shown.machine_id,
        name=shown.name,
        fleet=names.fleet(node.fleet),
        state=_state(node, silent_since_ms),
        job_ids=node.job_ids,
        pid=node.pid,
        engine_pid=node.engine_pid,
        device=node.device,
        vram_bytes=node.vram_bytes,
        price_micro_usd_per_hour=node.price_micro_usd_per_hour,
        held_models=tuple(node.held_models),
        first_seen_at=instant(node.first_seen_at_ms),
        last_seen_at=instant(node.last_seen_at_ms),
        strikes=node.strikes,
        instance_id=None if operators else node.instance_id,
        places=node.places,
        checks=_verdict(node.checks),
    )


def _verdict(kept: Mapping[str, Any]) -> NodeVerdict | None:
    return NodeVerdict.model_validate({**kept, "at": instant(kept["at_ms"])}) if kept else None


def _state(node: NodeRecord, silent_since_ms: int) -> NodeState:
    if node.replaced or node.last_seen_at_ms < silent_since_ms:
        return NodeState.GONE
    if node.draining:
        return NodeState.DRAINING
    return NodeState.BUSY if node.job_ids else NodeState.IDLE


def seen_nodes(ctx: Context, fleet: str) -> Sequence[FleetNode]:
    """Return the nodes heard of lately, less those that another process of their name has replaced."""
    since_ms = ctx.clock.now_ms() - round(ctx.policy.node_gone_after_s * 1000)
    with ctx.store.read() as tx:
        nodes = tx.fleets.nodes(fleet, seen_since_ms=since_ms)
    begun_ms: dict[tuple[str, str], int] = {}
    for node in nodes:
        place = (node.machine_id, node.name)
        begun_ms[place] = max(begun_ms.get(place, 0), node.first_seen_at_ms)
    return [node for node in nodes if begun_ms[node.machine_id, node.name] <= node.last_seen_at_ms]


def drain_node(ctx: Context, caller: Caller, node_id: str) -> Node:
    """Give the node no more jobs; its present work goes on elsewhere. May be repeated.

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
        record_call(tx, caller, AuditVerb.NODE_DRAIN, node_id, at_ms=now_ms, changes={"machine": node.machine_id})
        return _shown(tx, ctx, caller, node_id)


def undrain_node(ctx: Context, caller: Caller, node_id: str) -> Node:
    """Let the node have jobs again. May be repeated.

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
        record_call(tx, caller, AuditVerb.NODE_UNDRAIN, node_id, at_ms=now_ms, changes={"machine": node.machine_id})
        return _shown(tx, ctx, caller, node_id)


def _node(tx: Transaction, node_id: str) -> NodeRecord:
    node = tx.job_reads.node(node_id) if is_id(node_id) else None
    if node is None:
        raise NotFound(f"there is no node {node_id}")
    if node.replaced:
        raise Conflict(f"{node_id} is a process that is gone: a newer one on {node.machine_id} took its place")
    return node


def _instance(tx: Transaction, ctx: Context, node: NodeRecord, *, at_ms: int) -> InstanceRow | None:
    """Return the node's instance, of a fleet whose provider can be asked to end it; its fleet's row is held."""
    governed = ctx.fleets.get(node.fleet)
    if governed is None or not governed.fleet.limits.gives_nodes or tx.fleets.lock(node.fleet) is None:
        return None
    there = NodesOn(tx.fleets.nodes(node.fleet, seen_since_ms=at_ms - HEARD_WITHIN_MS))
    found = ((each, there.of(each)) for each in tx.fleets.instances(node.fleet))
    return next((each for each, on_it in found if on_it is not None and on_it.id == node.id), None)


def _require_ours(node_id: str, instance: InstanceRow) -> None:
    """Raises Conflict unless the node leaves because an operator drained it, and can stay."""
    if instance.ended_at_ms is not None:
        raise Conflict(f"{node_id} cannot stay: its provider was asked to end {instance.id}")
    if instance.leaving_reason != BY_HAND:
        raise Conflict(f"{node_id} was not drained by an operator; {instance.id} leaves: {instance.leaving_reason}")


def _shown(tx: Transaction, ctx: Context, caller: Caller, node_id: str) -> Node:
    silent_since_ms = ctx.clock.now_ms() - round(ctx.policy.node_gone_after_s * 1000)
    return node_reply(_node(tx, node_id), machine_names(tx, ctx, caller), silent_since_ms)
