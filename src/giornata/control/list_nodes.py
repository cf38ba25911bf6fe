"""The nodes that a key sees."""

from collections.abc import Mapping
from typing import Any

from giornata.control.context import Caller, Context
from giornata.control.instants import instant
from giornata.control.machine_names import MachineNames, machine_names
from giornata.control.pages import check_limit, decode_cursor, next_cursor
from giornata.control.permissions import require_user
from giornata.control.ports.records import NodeRecord
from giornata.protocol.admin import Node, NodePage, NodeState
from giornata.protocol.node_checks import NodeVerdict

SHOWN_WHEN_GONE_MS = 3_600_000


def list_nodes(ctx: Context, caller: Caller, *, gone: bool, cursor: str | None, limit: int) -> NodePage:
    """Nodes of the caller's project, of all projects for an admin of the installation; newest first.

    Nodes not heard of for an hour are left out unless `gone`. Raises Forbidden, InvalidInput.
    """
    require_user(caller)
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
    """As the key's owner may see it. A node that was last heard of before `silent_since_ms` is gone."""
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
