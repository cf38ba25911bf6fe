"""Find out the server's view of a node: its machine, its price, and its own checks.

The server does not take a node's own word on trust. A node of a project's own key is on a machine of that project,
whatever id it says (`domain.machines.machine_ids`). A node of the operator's key, or of a project's key that the
operator has bound to a fleet, is on a machine of the operator's.
"""

from giornata.control.access.permissions import require_bound_fleet, require_node, require_same_workload
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.ports.node_queries.work_rows import NodeRow, NodeSighting
from giornata.control.ports.store import Transaction
from giornata.control.storage.signed_urls import download, signed_url
from giornata.control.timestamps import instant
from giornata.domain.billing.money import format_usd
from giornata.domain.errors import BlobMissing, Conflict, Fault, Forbidden, InvalidInput
from giornata.domain.files.transfers import probe_bytes, probe_sha256, probe_size
from giornata.domain.fleets.starts import NodeStart
from giornata.domain.machines.machine_ids import LONGEST_ID, own_id
from giornata.domain.machines.node_checks import NodeThresholds
from giornata.protocol.node.node_checks import ChecksNoted, NodeChecks, NodePolicy, ProbeUpload
from giornata.protocol.node.work import NodeInfo
from giornata.protocol.uploads import Download

HEARD_OF_WITHIN_MS = 24 * 3_600_000
FOLDER = "probes"


def known_node(caller: Caller, node: NodeInfo) -> NodeInfo:
    """Return the node with the ids by which the server knows its machine and fleet.

    Raises Forbidden for a key that is no node's, and for a token or a bound key of another machine or fleet;
    InvalidInput for an id that is too long to be told apart from another owner's.
    """
    require_node(caller)
    require_same_workload(caller, machine_id=node.machine_id, fleet=node.fleet)
    require_bound_fleet(caller, node.fleet)
    if caller.owns_machines is None:
        return node
    said = {"machine_id": node.machine_id, "fleet": node.fleet}
    known = {name: own_id(value, caller.owns_machines) for name, value in said.items()}
    most = LONGEST_ID - len(own_id("", caller.owns_machines))
    faults = [
        Fault(where=f"node.{name}", message=f"has {len(value)} characters", hint=f"{most} at most in this project")
        for name, value in said.items()
        if len(value) > most
    ]
    if faults:
        raise InvalidInput(faults)
    return node.model_copy(update=known)


def refusal_of(
    tx: Transaction, ctx: Context, caller: Caller, node: NodeInfo, row: NodeRow, *, at_ms: int
) -> Conflict | Forbidden | None:
    """Return why this node gets no work, if it gets none. `node` is what it said, and `row` what was noted of it
    just now.

    A node that is refused when it first appears is forgotten again. Nothing is asked of the store for a node that was
    let in before, or is on the operator's machine.
    """
    if row.project_id != caller.project_id:
        return Conflict(f"the node id {row.id} belongs to another project; draw another one")
    refusal = _others_name(tx, ctx, caller, node, row, at_ms=at_ms) or _too_dear(ctx, caller, node, row)
    if refusal is not None and row.first_seen_at_ms == at_ms:
        tx.nodes.forget(row.id)
    return refusal


def price_of(ctx: Context, node: NodeInfo, row: NodeRow) -> int:
    """Return the node's billed price of an hour, in micro-dollars.

    In a fleet that the server governs it is what the provider listed the instance at, or the fleet's price while the
    instance is not listed. Elsewhere, and while no other price is known, the price that the node reports counts.
    """
    listed = _listed_price(ctx, node, row)
    return node.price_micro_usd_per_hour if listed is None else listed


def _listed_price(ctx: Context, node: NodeInfo, row: NodeRow) -> int | None:
    governed = ctx.fleets.get(node.fleet)
    if governed is None or governed.fleet.limits.nodes_say_their_price:
        return None
    return row.listed_price_micro_usd_per_hour


def _others_name(
    tx: Transaction, ctx: Context, caller: Caller, node: NodeInfo, row: NodeRow, *, at_ms: int
) -> Forbidden | None:
    if caller.owns_machines is None:
        return None
    if node.fleet in ctx.fleets:
        bind = f"giornata key create --scope node --project {caller.project_id} --fleet {node.fleet}"
        return Forbidden(
            f"the fleet {node.fleet} is the operator's, and this key is for machines of the project "
            f"{caller.project_id}: name another fleet, or ask the operator for a key of that fleet ({bind})"
        )
    if row.first_seen_at_ms != at_ms:
        return None
    since_ms = at_ms - HEARD_OF_WITHIN_MS
    if not tx.nodes.has_machine(node.machine_id, seen_since_ms=since_ms):
        return None
    return Forbidden(
        f"the machine {node.machine_id} is the operator's, and this key is for machines of the project "
        f"{caller.project_id}: start the node with another --machine-id"
    )


def _too_dear(ctx: Context, caller: Caller, node: NodeInfo, row: NodeRow) -> Forbidden | None:
    price, most = node.price_micro_usd_per_hour, caller.max_price_micro_usd_per_hour
    if most is None or price <= most or _listed_price(ctx, node, row) is not None:
        return None
    return Forbidden(
        f"the node says that it costs {format_usd(price)} an hour, and this key allows {format_usd(most)}: correct "
        "the node's --price, or make a key with a higher --max-price"
    )


def sighting(
    caller: Caller, node: NodeInfo, *, kinds: tuple[str, ...], held_models: tuple[str, ...] = ()
) -> NodeSighting:
    """Return the node as it describes itself, under the project of its key."""
    return NodeSighting(
        id=node.node_id,
        project_id=caller.project_id,
        machine_id=node.machine_id,
        name=node.name,
        fleet=node.fleet,
        instance_id=node.instance_id,
        places=node.places,
        pid=node.pid,
        engine_pid=node.engine_pid,
        device=node.device,
        vram_bytes=node.vram_bytes,
        price_micro_usd_per_hour=node.price_micro_usd_per_hour,
        kinds=kinds,
        held_models=held_models,
        versions=node.versions,
    )


def note_checks(ctx: Context, caller: Caller, checks: NodeChecks) -> ChecksNoted:
    """Keep the node's latest checks. Raises Forbidden for a key that is not this node's, Conflict for another
    project's node id.
    """
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
    """Return how far the node's start is. A node checks its machine first, starts its engine next, and only then
    asks for work.
    """
    if checks.leaving:
        return NodeStart.FAILED
    return NodeStart.UNDER_WAY if checks.node.engine_pid is None else NodeStart.DONE


def node_policy(ctx: Context, caller: Caller, fleet: str) -> NodePolicy:
    """Return the thresholds of the fleet; none for one that the server does not govern, and none for machines of a
    project's own. Raises Forbidden, Unavailable.
    """
    require_node(caller)
    governed = ctx.fleets.get(fleet) if caller.owns_machines is None else None
    wanted = NodeThresholds() if governed is None else governed.thresholds
    down, up = wanted.min_download_bytes_per_s, wanted.min_upload_bytes_per_s
    return NodePolicy(
        min_driver=wanted.min_driver,
        min_vram_bytes=wanted.min_vram_bytes,
        min_disk_bytes=wanted.min_disk_bytes,
        min_download_bytes_per_s=down,
        min_upload_bytes_per_s=up,
        max_clock_skew_s=wanted.max_clock_skew_s,
        download=None if down is None else _download(ctx, probe_size(down)),
        upload=None if up is None else _upload(ctx, probe_size(up)),
        at=instant(ctx.clock.now_ms()),
    )


def _download(ctx: Context, size_bytes: int) -> Download:
    """Return a URL of the probe, which is made where there is none.

    The probe belongs to no project, so the collector takes it away from time to time, as every object without a row.
    """
    key = f"{FOLDER}/down-{size_bytes}"
    try:
        there = ctx.blobs.size(key) == size_bytes
    except BlobMissing:
        there = False
    if not there:
        ctx.blobs.write(key, [probe_bytes(size_bytes)])
    return download(ctx, sha256=probe_sha256(size_bytes), size_bytes=size_bytes, key=key)


def _upload(ctx: Context, size_bytes: int) -> ProbeUpload:
    """Return a PUT that all nodes share: they send the same bytes."""
    sha256 = probe_sha256(size_bytes)
    life_s = round(ctx.policy.upload_url_s)
    put = ctx.blobs.sign_put(f"{FOLDER}/up-{size_bytes}", size_bytes=size_bytes, sha256=sha256, expires_in_s=life_s)
    return ProbeUpload(size_bytes=size_bytes, sha256=sha256, request=signed_url(put))
