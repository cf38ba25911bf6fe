"""Note the models that a node reports with its claim, and tell it which model to fetch."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from giornata.control.context import Context
from giornata.control.models.downloads import downloads_of
from giornata.control.notifications.announce import announce
from giornata.control.pictures.bounded_fetches import note_fetches
from giornata.control.pictures.model_coverage import BASE_ROLES
from giornata.control.pictures.route_pictures import base_to_fetch, see_fleet
from giornata.control.ports.node_queries.routing_store import BaseQueue
from giornata.control.ports.store import Transaction
from giornata.domain.generation.fleet_models import NodeModels
from giornata.protocol.events import OperatorEvent
from giornata.protocol.generation.checks.named_models import named_models
from giornata.protocol.node.held_models import HeldModels, HeldTier, PrefetchHint, merged
from giornata.protocol.node.work import Claim, ClaimReply
from giornata.protocol.project.admin import ROOT_PROJECT

UNKNOWN = -1
"""Version of a node that reports its files, when none of its reports is known."""
MOST_BESIDES = 16
"""LoRAs, ControlNets and other files of an order that are fetched behind its base."""


def note_models(tx: Transaction, ctx: Context, claim: Claim, owner: str | None, *, at_ms: int) -> None:
    """Note what the node of a claim holds. Writes only when the node's files or what it fetches have changed.

    `owner` is the only project that the node serves, if it does not serve all. A report that does not follow on what
    is known changes nothing: the reply's `held_version` asks for another one.
    """
    node_id, fleet = claim.node.node_id, ctx.memory.fleet_models
    _announce_damage(tx, ctx, claim, owner, at_ms=at_ms)
    known, said = fleet.of(node_id), _said(claim, owner, at_ms=at_ms)
    if claim.held_version is None:
        fleet.put(node_id, said)
        return
    if known is None or known.version is None:
        known = see_fleet(tx, ctx, at_ms=at_ms).of(node_id)
    if known is None or known.version is None:
        known = replace(said, version=UNKNOWN)
    now = replace(known, seen_at_ms=at_ms, owner=owner, vram_bytes=said.vram_bytes, gpu=said.gpu)
    now = _after_report(replace(now, fetching=claim.fetching), claim.held)
    if _files(now) != _files(known):
        tiers = {HeldTier.HOST: now.host, HeldTier.DISK: now.disk}
        tx.routing.note_held(node_id, version=now.version, held=tiers, fetching=now.fetching)
    elif now.fetching != known.fetching:
        tx.routing.note_held(node_id, version=None, held=None, fetching=now.fetching)
    fleet.put(node_id, now)


def is_noted(ctx: Context, claim: Claim) -> bool:
    """Return True when nothing that the claim says of the node's files is news."""
    known = ctx.memory.fleet_models.of(claim.node.node_id)
    if claim.held_version is None:
        return True
    if known is None or claim.damaged:
        return False
    return (known.version, known.fetching) == (claim.held_version, claim.fetching)


def known_version(ctx: Context, claim: Claim) -> int | None:
    """Return the version of the node's files that the server knows; None when it knows none."""
    known = ctx.memory.fleet_models.of(claim.node.node_id)
    return None if known is None or known.version == UNKNOWN else known.version


def wanted_base(ctx: Context, claim: Claim, project_id: str | None, *, at_ms: int) -> BaseQueue | None:
    """Return the base that a node which reports its files should fetch now, by what is remembered of the queue."""
    if claim.held_version is None or claim.fetching is not None or known_version(ctx, claim) is None:
        return None
    kept_ms = round(ctx.policy.routing_age_s * 1000) or 1
    queues = ctx.memory.base_queues(project_id, at_ms=at_ms, kept_ms=kept_ms)
    return base_to_fetch(ctx, claim, queues, at_ms=at_ms) if queues else None


def with_version(ctx: Context, claim: Claim, reply: ClaimReply) -> ClaimReply:
    """Add to the reply which version of the node's files is known, if the node reports them.

    Notes as well when the node expects to have what it fetches, for this process only; and which of its files were
    damaged. The reply tells which of its files were damaged on another node.
    """
    if claim.held_version is None:
        return reply
    left_s = claim.fetching_left_s if claim.fetching is not None else None
    arrives_at_ms = None if left_s is None else ctx.clock.now_ms() + round(left_s * 1000)
    fleet, node_id = ctx.memory.fleet_models, claim.node.node_id
    fleet.note_arrival(node_id, arrives_at_ms)
    suspects, known = ctx.memory.suspect_models, fleet.of(node_id)
    if claim.damaged:
        suspects.note(node_id, claim.damaged, at_ms=ctx.clock.now_ms())
    verify = () if known is None else suspects.to_verify(node_id, known.disk)
    return reply.model_copy(update={"held_version": known_version(ctx, claim), "verify": verify})


def with_models(ctx: Context, claim: Claim, reply: ClaimReply, project_id: str | None, *, at_ms: int) -> ClaimReply:
    """Add also which model the node is to fetch. `project_id` is the only project that it serves, if not all."""
    if claim.held_version is None:
        return reply
    told = with_version(ctx, claim, reply)
    return told.model_copy(update={"prefetch": _hint(ctx, claim, project_id, at_ms=at_ms)})


def _hint(ctx: Context, claim: Claim, project_id: str | None, *, at_ms: int) -> PrefetchHint | None:
    """Return the model that the node fetches next, in a transaction of its own; None for none.

    LoRAs and ControlNets of the order that waits for the base come behind it. A base whose bytes are nowhere is no
    hint. A lease of its pictures fails them then, and says why.
    """
    wanted = wanted_base(ctx, claim, project_id, at_ms=at_ms)
    if wanted is None:
        return None
    fleet, node_id = ctx.memory.fleet_models, claim.node.node_id
    files = fleet.base(wanted.base_key)
    held = fleet.of(node_id)
    disk = frozenset[str]() if held is None else held.disk
    missing = [each for each in files.sha256s if each not in disk] if files is not None else []
    fleet.note_hinted(node_id, wanted.base_key, at_ms=at_ms)
    with ctx.store.begin() as tx:
        besides = (each for each in _besides(tx, wanted.order_id) if each not in disk)
        names = dict.fromkeys([*missing, *islice(besides, MOST_BESIDES)])
        found = downloads_of(tx, ctx, wanted.project_id, list(names), order_ids=[wanted.order_id])
        if found.keys() >= set(missing):
            tx.routing.note_held(node_id, version=None, held=None, fetching=wanted.base_key)
            downloads = tuple(found[each] for each in names if each in found)
            note_fetches(ctx, node_id, (each for each in downloads if each.sha256 not in missing), at_ms=at_ms)
            return PrefetchHint(base_key=wanted.base_key, downloads=downloads)
    fleet.note_given_up(node_id)
    return None


def _besides(tx: Transaction, order_id: str) -> Iterator[str]:
    """The sha256 of each LoRA, ControlNet and other file that the order names besides its bases."""
    for order in tx.picture_orders.specs([order_id]).values():
        named = (each for each in named_models(order.spec) if each.role not in BASE_ROLES)
        yield from (each.use["sha256"] for each in named if each.use.get("sha256"))


def _announce_damage(tx: Transaction, ctx: Context, claim: Claim, owner: str | None, *, at_ms: int) -> None:
    """Tell the owner of the machine which model files were damaged on it, once for each."""
    node = claim.node
    for sha256 in claim.damaged:
        if not ctx.memory.suspect_models.is_known(node.node_id, sha256):
            data = {"machine_id": node.machine_id, "node_id": node.node_id, "sha256": sha256}
            announce(tx, ctx, owner or ROOT_PROJECT, OperatorEvent.MODEL_DAMAGED, data, at_ms=at_ms)


def _said(claim: Claim, owner: str | None, *, at_ms: int) -> NodeModels:
    """Return what every claim says of its node."""
    gpu = frozenset(claim.held_models)
    return NodeModels(seen_at_ms=at_ms, owner=owner, vram_bytes=claim.node.vram_bytes, gpu=gpu)


def _after_report(known: NodeModels, report: HeldModels | None) -> NodeModels:
    tiers = {HeldTier.HOST: known.host, HeldTier.DISK: known.disk}
    found = None if report is None else merged(tiers, known.version, report)
    if report is None or found is None:
        return known
    host, disk = found.get(HeldTier.HOST, frozenset()), found.get(HeldTier.DISK, frozenset())
    return replace(known, host=host, disk=disk, version=report.version)


def _files(known: NodeModels) -> tuple[object, ...]:
    return known.version, known.host, known.disk
