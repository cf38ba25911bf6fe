"""Lease pictures to a node: an attempt that has pictures instead of a job. Part of the claim's transaction.

Annotations that the project keeps are entries of its cache: what one node has made, another node downloads.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from giornata.control.access.authenticate import attempt_token
from giornata.control.access.install import signing_key_in
from giornata.control.context import Context
from giornata.control.models.downloads import downloads_of
from giornata.control.pictures.await_annotations import advance, kept_of, without_unkept
from giornata.control.pictures.bounded_fetches import note_lease_fetches, passed_over, within_bound
from giornata.control.ports.node_queries.picture_store import LeaseBill, OrderSpec, PictureRow, PicturesWanted
from giornata.control.ports.node_queries.work_rows import AttemptRow
from giornata.control.ports.store import Transaction
from giornata.control.storage.signed_urls import download
from giornata.domain.billing.costs import apportion
from giornata.domain.generation.picture import FAILED_AGAIN_MS, SafetyPolicy, strictest
from giornata.domain.jobs.attempt import renew_every_s
from giornata.domain.jobs.job import JobEvent, JobState
from giornata.protocol.generation.annotators import ANNOTATION_ENTRY
from giornata.protocol.generation.awaited_annotations import awaited, awaits_annotation, model_annotations
from giornata.protocol.generation.expand import leased_params
from giornata.protocol.generation.picture import PictureParams
from giornata.protocol.generation.preprocess import AnnotationParams, LeasedParams, annotation_keys
from giornata.protocol.node.pictures import ANNOTATION_ROLE, LeasedPicture, LeaseFile, PictureLease
from giornata.protocol.node.work import Claim, NodeInfo

NOTED_EVERY_MS = 3_600_000
"""The use of an entry is noted no more often."""
SHARED = frozenset({*PictureParams.model_fields, *AnnotationParams.model_fields})
"""Fields of a spec that decide on a picture."""
MOST_BATCHES = 8
"""A claim looks at so many batches whose pictures were all queued anew."""


def pictures_wanted(
    ctx: Context, claim: Claim, *, machine_id: str, project_id: str | None, at_ms: int
) -> PicturesWanted:
    """Return the conditions of the pictures that a claim may get. The routing policy names their bases.

    A claim with a joint key asks for pictures that may join the batch of that key.
    """
    return PicturesWanted(
        most=claim.max_pictures,
        bases=(),
        machine_id=machine_id,
        project_id=project_id,
        vram_bytes=claim.node.vram_bytes,
        batch_key=claim.joint_key,
        failed_since_ms=at_ms - FAILED_AGAIN_MS,
        passed_over=passed_over(ctx, claim, at_ms=at_ms),
    )


def lease_pictures(
    tx: Transaction, ctx: Context, wanted: PicturesWanted, claim: Claim, node: NodeInfo, *, price: int, at_ms: int
) -> PictureLease | None:
    """Lease pictures to the node of the claim, whose row is held; None when there are none for it. `node` is the node
    as the server knows it.

    The node's price is divided among the orders by the pixel-steps of their pictures.
    """
    attempt_id = ctx.names.new("att")
    for _ in range(MOST_BATCHES):
        if (orders := passed_over(ctx, claim, at_ms=at_ms)) != wanted.passed_over:
            wanted = replace(wanted, passed_over=orders)
        taken = tx.picture_leases.take(wanted, lease=attempt_id)
        if not taken:
            return None
        specs = _specs(tx, ctx, {each.order_id for each in taken})
        ready = _ready(tx, taken, specs, lease=attempt_id)
        if pictures := within_bound(tx, ctx, ready, specs, claim, lease=attempt_id, at_ms=at_ms):
            break
    else:
        return None
    attempt = _attempt(ctx, pictures, node, attempt_id, price=price, at_ms=at_ms)
    tx.picture_leases.begin(attempt, claim.request_id, bills_of(pictures, price_micro_usd_per_hour=price))
    ctx.memory.fleet_models.note_leased(node.node_id, pictures[0].base_key, at_ms=at_ms)
    lease = build_picture_lease(tx, ctx, attempt, pictures, specs=specs)
    note_lease_fetches(ctx, node.node_id, lease.files, at_ms=at_ms)
    return lease


def _ready(
    tx: Transaction, pictures: Sequence[PictureRow], specs: Mapping[str, OrderSpec], *, lease: str
) -> Sequence[PictureRow]:
    """Return those of the taken pictures that the lease may have. Pictures whose annotation is kept by now, or was
    collected, are queued anew."""
    first = pictures[0]
    if not awaits_annotation(first.batch_key, first.base_key):
        return without_unkept(tx, pictures, specs)
    order = specs[first.order_id]
    needed = model_annotations(order.kind, order.spec, first.differs)
    if needed and not kept_of(tx, first.project_id, [awaited(first.project_id, first.batch_key, needed)]):
        return pictures
    advance(tx, first, lease=lease)
    tx.picture_leases.give_back(lease, fruitless=False)
    return ()


def build_picture_lease(
    tx: Transaction,
    ctx: Context,
    attempt: AttemptRow,
    pictures: Sequence[PictureRow],
    *,
    specs: Mapping[str, OrderSpec] | None = None,
) -> PictureLease:
    """Return the lease of these pictures of one batch key; a second call gives the same, with fresh URLs."""
    projects = {each.key: each.project_id for each in pictures}
    ctx.memory.remember_lease(attempt.id, projects, until_ms=attempt.lease_expires_at_ms)
    specs = _specs(tx, ctx, {each.order_id for each in pictures}) if specs is None else specs
    waits = bool(pictures) and awaits_annotation(pictures[0].batch_key, pictures[0].base_key)
    params = [(_awaited if waits else _drawn)(each, specs[each.order_id]) for each in pictures]
    drawn = list(zip(pictures, params, strict=True))
    annotations = kept_annotations(tx, ctx, attempt.job_id, drawn)
    return PictureLease(
        attempt_id=attempt.id,
        token=attempt_token(signing_key_in(tx, ctx), attempt.id),
        batch_key=pictures[0].batch_key if pictures else "",
        base_key=pictures[0].base_key if pictures else "",
        lease_s=ctx.policy.lease_s,
        renew_every_s=renew_every_s(ctx.policy.lease_s),
        pictures=tuple(
            _leased(each, whole, specs[each.order_id].safety) for each, whole in zip(pictures, params, strict=True)
        ),
        files=(*_files(tx, ctx, drawn), *annotations.files),
        wanted_annotations=annotations.wanted,
        only_annotates=waits,
    )


def _drawn(row: PictureRow, order: OrderSpec) -> LeasedParams:
    return leased_params(order.kind, order.spec, seed=row.seed, differs=row.differs)


def _awaited(row: PictureRow, order: OrderSpec) -> LeasedParams:
    """Return the annotation for which a picture waits."""
    return awaited(row.project_id, row.batch_key, model_annotations(order.kind, order.spec, row.differs))


def begin_orders(ctx: Context, order_ids: Iterable[str]) -> None:
    """Note that these orders have begun, in transactions of their own: a claim that waited for an order's row would
    hold pictures that the order's owner may be waiting for."""
    for order_id in sorted(order_ids):
        if not ctx.memory.begins(order_id):
            continue
        with ctx.store.begin() as tx:
            job = tx.jobs.lock(order_id)
            if job is not None and job.state is JobState.QUEUED:
                now_ms = ctx.clock.now_ms()
                tx.jobs.change(job, JobEvent.CLAIM, started_at_ms=job.started_at_ms or now_ms)
                ctx.durations.claimed([job], at_ms=now_ms)


def bills_of(pictures: Sequence[PictureRow], *, price_micro_usd_per_hour: int) -> list[LeaseBill]:
    """Divide the node's price among the orders by the pixel-steps of their pictures; the parts add up to it."""
    work: dict[tuple[str, str], int] = defaultdict(int)
    for each in pictures:
        work[each.order_id, each.project_id] += each.pixel_steps
    parts = apportion(price_micro_usd_per_hour, [Fraction(steps) for steps in work.values()])
    return [
        LeaseBill(order_id=order_id, project_id=project_id, price_micro_usd_per_hour=part)
        for (order_id, project_id), part in zip(work, parts, strict=True)
    ]


def _attempt(
    ctx: Context, pictures: Sequence[PictureRow], node: NodeInfo, attempt_id: str, *, price: int, at_ms: int
) -> AttemptRow:
    return AttemptRow.begun(
        attempt_id,
        node,
        job_id=pictures[0].order_id,
        number=0,
        step=0,
        price_micro_usd_per_hour=price,
        lease_s=ctx.policy.lease_s,
        at_ms=at_ms,
        pictures=len(pictures),
    )


def _leased(row: PictureRow, params: LeasedParams, demanded: SafetyPolicy) -> LeasedPicture:
    """Return the picture for a node. An annotation of a user's own picture is not checked."""
    safety = SafetyPolicy.OFF
    if isinstance(params, PictureParams):
        safety = strictest(demanded, SafetyPolicy.BLOCK if params.safety_checker else SafetyPolicy.OFF)
        if safety is SafetyPolicy.BLOCK:  # a node of before knows this field alone
            params = params.model_copy(update={"safety_checker": True})
    return LeasedPicture(
        order_id=row.order_id, number=row.number, params=params.model_dump(mode="json"), safety=safety
    )


def _specs(tx: Transaction, ctx: Context, order_ids: set[str]) -> Mapping[str, OrderSpec]:
    """Return the specs of the orders, which this process remembers for a while without their lists of prompts: those
    are long, and stand in the pictures' rows."""
    at_ms, generation = ctx.clock.now_ms(), ctx.memory.order_generation
    remembered = {order_id: ctx.memory.order_spec(order_id, at_ms=at_ms) for order_id in order_ids}
    known = {order_id: spec for order_id, spec in remembered.items() if spec is not None}
    if missing := sorted(order_ids - known.keys()):
        for order_id, found in tx.picture_orders.specs(missing).items():
            shared = {name: value for name, value in found.spec.items() if name in SHARED}
            known[order_id] = replace(found, spec=shared)
            ctx.memory.remember_order_spec(known[order_id], at_ms=at_ms, generation=generation)
    return known


def _files(tx: Transaction, ctx: Context, drawn: Iterable[tuple[PictureRow, LeasedParams]]) -> Iterator[LeaseFile]:
    """Yield each file once. A file that is nowhere is left out, and the engine fails the pictures that need it."""
    wanted: dict[str, dict[str, tuple[str, str]]] = defaultdict(dict)  # role and name, by project and sha256
    orders: dict[str, set[str]] = defaultdict(set)
    for picture, params in drawn:
        orders[picture.project_id].add(picture.order_id)
        names = _names(params)
        for sha256, role in params.files().items():
            wanted[picture.project_id].setdefault(sha256, (role, names.get(sha256, sha256)))
    given: set[str] = set()
    for project_id, files in sorted(wanted.items()):
        found = downloads_of(tx, ctx, project_id, list(files), order_ids=sorted(orders[project_id]))
        for sha256 in sorted(found.keys() - given):
            role, name = files[sha256]
            yield LeaseFile(role=role, name=name, download=found[sha256])
        given |= found.keys()


def _names(params: LeasedParams) -> Mapping[str, str]:
    if isinstance(params, AnnotationParams):
        return {}
    refiner = () if params.refiner is None else (params.refiner.model,)
    vae = () if params.vae is None else (params.vae,)
    uses = (params.model, *vae, *params.loras, *params.embeddings, *params.controlnets, *refiner)
    return {use.sha256: use.name for use in uses if use.sha256 is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptAnnotations:
    """The annotations of a lease: files for those that the project has, and the keys of the others."""

    files: tuple[LeaseFile, ...] = ()
    wanted: tuple[str, ...] = ()


def kept_annotations(
    tx: Transaction, ctx: Context, order_id: str, drawn: Sequence[tuple[PictureRow, LeasedParams]]
) -> KeptAnnotations:
    """Return the annotations that the pictures of a lease need. `order_id` is the order of the lease's attempt.

    A node writes to the cache of that order's project alone. So annotations that pictures of another project need as
    well are left out: each project trusts its own nodes only. A lease without annotations costs no statement.
    """
    keys: dict[str, set[str]] = {}
    for row, params in drawn:
        for key in annotation_keys(params):
            keys.setdefault(key, set()).add(row.project_id)
    projects = {row.project_id for row, _ in drawn if row.order_id == order_id}
    own = sorted(key for key, users in keys.items() if users == projects)
    return _kept_or_wanted(tx, ctx, projects.pop(), own) if own else KeptAnnotations()


def _kept_or_wanted(tx: Transaction, ctx: Context, project_id: str, keys: Iterable[str]) -> KeptAnnotations:
    now_ms = ctx.clock.now_ms()
    entries = tx.uploads.caches(project_id, [ANNOTATION_ENTRY + key for key in keys])
    files, wanted = [], []
    for key in keys:
        entry = entries.get(ANNOTATION_ENTRY + key)
        if entry is None:
            wanted.append(key)
            continue
        if now_ms - entry.used_at_ms >= NOTED_EVERY_MS:
            tx.uploads.cache_used(project_id, ANNOTATION_ENTRY + key, at_ms=now_ms)
        kept = download(ctx, sha256=entry.sha256, size_bytes=entry.size_bytes, key=entry.key)
        files.append(LeaseFile(role=ANNOTATION_ROLE, name=key, download=kept))
    return KeptAnnotations(files=tuple(files), wanted=tuple(wanted))
