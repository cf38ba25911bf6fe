"""Decide which bases a claim of pictures may get, by the policy of `giornata.domain.generation.model_routing`.

A server reads the distinct bases of the queue and the models of live nodes about once a second, and remembers both. A
claim that finds nothing by what is remembered looks again: what is out of date costs the load of a model, and leaves
no picture behind.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from giornata.control.context import Context
from giornata.control.ports.node_queries.picture_store import PicturesWanted
from giornata.control.ports.node_queries.routing_store import BaseQueue, NodeModelsRow
from giornata.control.ports.store import Transaction
from giornata.domain.errors import InvalidInput
from giornata.domain.generation.fleet_models import BaseFiles, FleetModels, NodeModels
from giornata.domain.generation.model_routing import (
    PIXEL_STEPS_PER_S,
    BaseDemand,
    Holders,
    choices,
    is_relief,
    prefetch,
)
from giornata.domain.generation.picture import LEASE_KIND
from giornata.protocol.generation.awaited_annotations import MODEL_BASES, node_kind_of_base
from giornata.protocol.generation.expand import bases_of
from giornata.protocol.node.held_models import HeldTier, HeldTiers
from giornata.protocol.node.work import Claim
from giornata.protocol.project.admin import ROOT_PROJECT

log = logging.getLogger(__name__)

MOST_BASES = 8
"""Bases of one statement: the first one serves, unless the node may not have its pictures."""
REFUSED_AGAIN_MS = 250
"""A node that waits for another one's models is looked up anew so often."""
MOST_KNOWN_BASES = 20_000


class DemandByBase:
    """The pictures that wait for these bases. Implements `giornata.domain.generation.model_routing.PictureDemand`."""

    def __init__(self, queues: Iterable[BaseQueue], fleet: FleetModels) -> None:
        self._queues = {each.base_key: each for each in queues}
        self._fleet = fleet

    def of_base(self, base_key: str) -> BaseDemand | None:
        """Return what waits for this base."""
        queue = self._queues.get(base_key)
        return None if queue is None else _demand(queue)

    def by_turn(self) -> Iterable[BaseDemand]:
        """Iterate over the bases in the order of the queue."""
        return map(_demand, self._queues.values())

    def holders(self, base_key: str) -> Holders:
        """Return the number of live nodes that hold the base and may draw its first picture."""
        queue = self._queues[base_key]
        return self._fleet.holders(base_key, project_id=queue.project_id, min_vram_bytes=queue.min_vram_bytes)


def routes(
    tx: Transaction, ctx: Context, claim: Claim, wanted: PicturesWanted, *, at_ms: int, anew: bool = False
) -> list[tuple[str, ...]]:
    """Return the bases that the claim may get, the best first, in pages for one statement each.

    A claim for companions of a batch has one empty page: its batch key says which pictures it may get. `anew`: what
    is remembered does not count.
    """
    if wanted.batch_key is not None:
        return [()]
    queues = queues_of(tx, ctx, wanted.project_id, at_ms=at_ms, kept_s=0 if anew else ctx.policy.routing_age_s)
    found = list(dict.fromkeys(_in_order(ctx, claim, queues, at_ms=at_ms))) if queues else []
    return [tuple(found[first : first + MOST_BASES]) for first in range(0, len(found), MOST_BASES)]


def waiting_routes(
    tx: Transaction, ctx: Context, claim: Claim, wanted: PicturesWanted, *, at_ms: int
) -> list[tuple[str, ...]]:
    """Return the same for a claim that waits: it looks again when nothing waited, and now and then when something
    waited for others."""
    kept_s = ctx.policy.routing_age_s
    if not (found := routes(tx, ctx, claim, wanted, at_ms=at_ms)):
        known = ctx.memory.base_queues(wanted.project_id, at_ms=at_ms, kept_ms=round(kept_s * 1000))
        recent = ctx.memory.base_queues(wanted.project_id, at_ms=at_ms, kept_ms=REFUSED_AGAIN_MS)
        if not known or recent is None:
            return routes(tx, ctx, claim, wanted, at_ms=at_ms, anew=True)
    return found


def queues_of(
    tx: Transaction, ctx: Context, project_id: str | None, *, at_ms: int, kept_s: float
) -> Sequence[BaseQueue]:
    """Return the bases that pictures wait for, with files and holders known for each; at most `kept_s` old."""
    known = ctx.memory.base_queues(project_id, at_ms=at_ms, kept_ms=round(kept_s * 1000))
    if known is not None:
        return known
    queues = tx.routing.base_queues(project_id=project_id)
    _learn_bases(tx, ctx, queues)
    if queues:
        see_fleet(tx, ctx, at_ms=at_ms)
    ctx.memory.remember_base_queues(project_id, queues, at_ms=at_ms)
    return queues


def see_fleet(tx: Transaction, ctx: Context, *, at_ms: int) -> FleetModels:
    """Bring the models of live nodes up to date, unless that was done a moment ago."""
    fleet = ctx.memory.fleet_models
    read_at_ms = fleet.read_at_ms
    if read_at_ms is not None and 0 <= at_ms - read_at_ms < ctx.policy.routing_age_s * 1000:
        return fleet
    rows = tx.routing.nodes(seen_since_ms=at_ms - round(ctx.policy.node_gone_after_s * 1000))
    versions = fleet.versions()
    changed = [row.node_id for row in rows if row.version is not None and versions.get(row.node_id) != row.version]
    files = tx.routing.held(changed) if changed else {}
    for row in rows:
        fleet.put(row.node_id, _node_models(row, fleet.of(row.node_id), files.get(row.node_id)))
    fleet.keep_only([row.node_id for row in rows], at_ms=at_ms)
    ctx.memory.large_files.forget_old(at_ms=at_ms)
    fleet.read_at_ms = at_ms
    return fleet


def base_to_fetch(ctx: Context, claim: Claim, queues: Sequence[BaseQueue], *, at_ms: int) -> BaseQueue | None:
    """Return the base that the node should fetch while its GPU works, by its first picture; None for none."""
    fleet, vram_bytes = ctx.memory.fleet_models, claim.node.vram_bytes
    drawn = [each for each in queues if LEASE_KIND in claim.kinds and each.base_key not in MODEL_BASES]
    fit = [each for each in drawn if vram_bytes is None or each.min_vram_bytes <= vram_bytes]
    demand = DemandByBase(fit, fleet)
    base_key = prefetch(fleet.held(claim.node.node_id), demand, now_ms=at_ms, policy=ctx.policy.routing)
    return next((each for each in fit if each.base_key == base_key), None)


def _in_order(ctx: Context, claim: Claim, queues: Sequence[BaseQueue], *, at_ms: int) -> Iterator[str]:
    """Yield the bases that the policy chooses from those of the highest priority, then from the next ones."""
    policy, fleet = ctx.policy.routing, ctx.memory.fleet_models
    queues = [each for each in queues if node_kind_of_base(each.base_key) in claim.kinds]
    held, relief = fleet.held(claim.node.node_id), is_relief(claim.request_id, policy)
    if claim.held_version is None:  # nobody knows what it holds: it waits for no other node
        policy = replace(policy, delay_s=0)
    for _, some in groupby(queues, key=lambda each: each.priority):
        demand = DemandByBase(some, fleet)
        for choice in choices(held, demand, now_ms=at_ms, relief=relief, policy=policy):
            yield choice.base_key


def work_that_waits_s(queue: BaseQueue) -> float:
    """Return the seconds that the pictures of a base take one node: those that were counted, or those of the first
    order."""
    mean = queue.pixel_steps / max(1, queue.sampled)
    return max(float(queue.pixel_steps), mean * queue.order_pictures) / PIXEL_STEPS_PER_S


def _demand(queue: BaseQueue) -> BaseDemand:
    return BaseDemand(
        base_key=queue.base_key,
        oldest_at_ms=queue.waits_since_ms,
        work_s=work_that_waits_s(queue),
        turn=queue.turn,
    )


def _learn_bases(tx: Transaction, ctx: Context, queues: Sequence[BaseQueue]) -> None:
    """Learn the files of bases that this process has not met: the order of the first picture tells them.

    A base that its order does not tell counts as one of the hub. Its pictures are leased, and fail with their reason.
    """
    fleet = ctx.memory.fleet_models
    unknown = [each for each in queues if fleet.base(each.base_key) is None]
    if not unknown:
        return
    found = {each.base_key: BaseFiles(name=MODEL_BASES.get(each.base_key, each.base_key)) for each in unknown}
    for order in tx.picture_orders.specs(sorted({each.order_id for each in unknown})).values():
        try:
            found |= bases_of(order.kind, order.spec)
        except (ValueError, InvalidInput) as error:
            log.warning("the bases of order %s are not known: %s", order.id, error)
    fleet.remember_bases(found, but_at_most=MOST_KNOWN_BASES)


def _node_models(row: NodeModelsRow, known: NodeModels | None, files: HeldTiers | None) -> NodeModels:
    """Return what the row says, but for a lease that this process gave the node since it said so."""
    if known is not None and known.seen_at_ms >= row.seen_at_ms:
        gpu, seen_at_ms = known.gpu, known.seen_at_ms
    else:
        gpu, seen_at_ms = frozenset(row.gpu), row.seen_at_ms
    if files is None:
        host = frozenset() if known is None else known.host
        disk = frozenset() if known is None else known.disk
    else:
        host, disk = files.get(HeldTier.HOST, frozenset()), files.get(HeldTier.DISK, frozenset())
    owner = None if row.project_id == ROOT_PROJECT else row.project_id
    return NodeModels(
        owner=owner,
        vram_bytes=row.vram_bytes,
        seen_at_ms=seen_at_ms,
        gpu=gpu,
        host=host,
        disk=disk,
        fetching=row.fetching,
        version=row.version,
    )
