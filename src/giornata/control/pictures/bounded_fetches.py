"""Bound how many nodes fetch the same large file at once: ControlNets, refiners and other files besides a base.

The rule is `giornata.domain.generation.large_files.may_fetch`. A server learns from its leases and hints which files
are large, and which nodes fetch them. A hint is bounded by the base that it names. A claim costs no statement for
it, unless pictures are given back.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from giornata.control.context import Context
from giornata.control.pictures.route_pictures import work_that_waits_s
from giornata.control.ports.node_queries.picture_store import OrderSpec, PictureRow
from giornata.control.ports.store import Transaction
from giornata.domain.generation.large_files import may_fetch
from giornata.domain.generation.model_routing import PIXEL_STEPS_PER_S, Holders, is_relief
from giornata.protocol.generation.expand import leased_params
from giornata.protocol.node.pictures import LeaseFile
from giornata.protocol.node.work import Claim
from giornata.protocol.uploads import Download

BESIDE = frozenset({"lora", "embedding", "controlnet", "refiner"})
"""Roles of files that a lease may name although its node has to fetch them."""


def passed_over(ctx: Context, claim: Claim, *, at_ms: int) -> tuple[str, ...]:
    """Return the orders whose pictures the node of a claim does not get now."""
    orders = ctx.memory.large_files.passed_over(claim.node.node_id, at_ms=at_ms)
    return () if orders and is_relief(claim.request_id, ctx.policy.routing) else orders


def within_bound(
    tx: Transaction,
    ctx: Context,
    pictures: Sequence[PictureRow],
    specs: Mapping[str, OrderSpec],
    claim: Claim,
    *,
    lease: str,
    at_ms: int,
) -> Sequence[PictureRow]:
    """Return the pictures of a new lease that the node may have, and give back those that wait for other nodes: they
    need a large file that the node lacks, and that enough nodes have or fetch."""
    node_id, large = claim.node.node_id, ctx.memory.large_files
    known = ctx.memory.fleet_models.of(node_id)
    missing = frozenset[str]() if known is None or known.version is None else large.missing(known.disk)
    if not missing or not pictures:
        return pictures
    missing -= large.told_to(node_id, at_ms=at_ms)
    needs = {row.key: missing & _files(row, specs[row.order_id]) for row in pictures}
    users: dict[str, list[PictureRow]] = defaultdict(list)
    for row in pictures:
        for sha256 in needs[row.key]:
            users[sha256].append(row)
    relief = is_relief(claim.request_id, ctx.policy.routing)
    refused = {
        sha256 for sha256, rows in users.items() if not _may_fetch(ctx, sha256, rows, relief=relief, at_ms=at_ms)
    }
    left = [row for row in pictures if needs[row.key] & refused]
    if left:
        for order_id in {row.order_id for row in left}:
            large.pass_over(node_id, order_id, at_ms=at_ms)
        tx.picture_leases.give_back(lease, keys=[row.key for row in left], fruitless=False)
    return [row for row in pictures if not needs[row.key] & refused]


def note_lease_fetches(ctx: Context, node_id: str, files: Iterable[LeaseFile], *, at_ms: int) -> None:
    """Note which large files the node fetches for its new lease."""
    note_fetches(ctx, node_id, (each.download for each in files if each.role in BESIDE), at_ms=at_ms)


def note_fetches(ctx: Context, node_id: str, downloads: Iterable[Download], *, at_ms: int) -> None:
    """Note which of these files, none of a base, are large and are fetched by the node."""
    known = ctx.memory.fleet_models.of(node_id)
    if known is None or known.version is None:
        return
    for each in downloads:
        if each.size_bytes >= ctx.policy.routing.large_bytes and each.sha256 not in known.disk:
            ctx.memory.large_files.note_fetch(node_id, each.sha256, each.size_bytes, at_ms=at_ms)


def _files(row: PictureRow, order: OrderSpec) -> frozenset[str]:
    params = leased_params(order.kind, order.spec, seed=row.seed, differs=row.differs)
    return frozenset(sha256 for sha256, role in params.files().items() if role in BESIDE)


def _may_fetch(ctx: Context, sha256: str, rows: Sequence[PictureRow], *, relief: bool, at_ms: int) -> bool:
    """Return True when one more node may fetch the file for these pictures of one base."""
    first, large = rows[0], ctx.memory.large_files
    work_s = sum(row.pixel_steps for row in rows) / PIXEL_STEPS_PER_S
    orders = {row.order_id for row in rows}
    kept_ms = max(1, round(ctx.policy.routing_age_s * 1000))
    for project_id in (None, first.project_id):  # of a node that serves all, or this one alone
        for queue in ctx.memory.base_queues(project_id, at_ms=at_ms, kept_ms=kept_ms) or ():
            if queue.base_key == first.base_key and queue.order_id in orders:
                work_s = max(work_s, work_that_waits_s(queue))
    return may_fetch(
        _holders(ctx, sha256, first.base_key, first.project_id, at_ms=at_ms),
        work_s=work_s,
        waited_s=max(large.waited_s(order_id, at_ms=at_ms) for order_id in orders),
        relief=relief,
        policy=ctx.policy.routing,
    )


def _holders(ctx: Context, sha256: str, base_key: str, project_id: str, *, at_ms: int) -> Holders:
    fetching, fetched = ctx.memory.large_files.told(sha256, at_ms=at_ms)
    return ctx.memory.fleet_models.holders_beside(
        sha256, base_key, project_id=project_id, fetching=fetching, fetched=fetched
    )
