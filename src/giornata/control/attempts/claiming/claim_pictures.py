"""Decide whether a claim gets a job or pictures, and lease the pictures of the base that the routing policy chooses.

A claim for both gets what has the higher priority. Of equal priority every other claim, by its request id, looks for
pictures first: turns of jobs and of pictures count different things.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from giornata.control.attempts.claiming.admit import Admitted
from giornata.control.attempts.claiming.claim_refusals import empty_reply
from giornata.control.context import Context
from giornata.control.pictures.lease import build_picture_lease, lease_pictures
from giornata.control.pictures.route_pictures import routes, waiting_routes
from giornata.control.ports.node_queries.picture_store import PicturesWanted
from giornata.control.ports.node_queries.work_rows import AttemptRow, Wanted
from giornata.control.ports.store import Transaction
from giornata.domain.generation.picture import ORDER_KINDS
from giornata.protocol.node.pictures import PictureLease
from giornata.protocol.node.work import Claim, ClaimReply, NodeInfo

NO_PICTURE = "no picture is waiting that this node may draw"
FIRST_BASES = 2
"""Bases of a claim's first statement. Nearly always the first one has pictures for the node."""
ELSEWHERE = "pictures are waiting, for nodes that hold their models or fetch them"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawer:
    """A claim of a node that may draw now: the pictures that it may have, and its node's price."""

    claim: Claim
    node: NodeInfo
    wanted: PicturesWanted
    admitted: Admitted
    price: int


def for_jobs(wanted: Wanted) -> Wanted | None:
    """Return what a claim asks for besides pictures; None when that is nothing. No node gets an order as a job."""
    if ORDER_KINDS.isdisjoint(wanted.kinds):
        return wanted
    kinds = tuple(kind for kind in wanted.kinds if kind not in ORDER_KINDS)
    return replace(wanted, kinds=kinds) if kinds else None


def may_draw(admitted: Admitted) -> bool:
    """Return True when the machine may begin to draw now."""
    return admitted.wanted is not None and not ORDER_KINDS.isdisjoint(admitted.wanted.kinds)


def draw_first(tx: Transaction, ctx: Context, drawers: Mapping[int, Drawer], *, at_ms: int) -> dict[int, ClaimReply]:
    """Lease pictures to those claims that get pictures before they look for a job; return the leases by number."""
    first = {number: each for number, each in drawers.items() if _pictures_first(tx, ctx, each, at_ms=at_ms)}
    return draw(tx, ctx, first, at_ms=at_ms)


def draw(tx: Transaction, ctx: Context, drawers: Mapping[int, Drawer], *, at_ms: int) -> dict[int, ClaimReply]:
    """Lease pictures to these claims in their order; return the leases by number."""
    found = {}
    for number, each in sorted(drawers.items()):
        if (lease := _lease(tx, ctx, each, at_ms=at_ms)) is not None:
            found[number] = ClaimReply(picture_lease=lease)
    return found


def _pictures_first(tx: Transaction, ctx: Context, drawer: Drawer, *, at_ms: int) -> bool:
    """A canary goes before everything."""
    wanted = drawer.admitted.wanted
    jobs = None if wanted is None else for_jobs(wanted)
    if jobs is None or drawer.admitted.on_trial:
        return not drawer.admitted.on_trial
    pages = routes(tx, ctx, drawer.claim, drawer.wanted, at_ms=at_ms)
    of_pictures = tx.picture_leases.head_priority(replace(drawer.wanted, bases=pages[0])) if pages else None
    if of_pictures is None:
        return False
    of_jobs = tx.jobs.head_priority(jobs)
    if of_jobs is None or of_jobs == of_pictures:
        return of_jobs is None or zlib.crc32(drawer.claim.request_id.encode()) % 2 == 0
    return of_pictures > of_jobs


def _lease(tx: Transaction, ctx: Context, drawer: Drawer, *, at_ms: int) -> PictureLease | None:
    """Lease pictures of the first base that has some for the node.

    A second look follows the first: others may just have taken the whole batch that stood first, and what is
    remembered of the queue may be out of date.
    """
    for anew in (False, True):
        pages = routes(tx, ctx, drawer.claim, drawer.wanted, at_ms=at_ms, anew=anew)
        for page in pages if anew else [each[:FIRST_BASES] for each in pages[:1]]:
            wanted = replace(drawer.wanted, bases=page)
            lease = lease_pictures(tx, ctx, wanted, drawer.claim, drawer.node, price=drawer.price, at_ms=at_ms)
            if lease is not None:
                return lease
    return None


def same_pictures(tx: Transaction, ctx: Context, attempt: AttemptRow) -> ClaimReply:
    """Answer a claim whose reply got lost: the lease has the pictures that it still has to draw."""
    rows = tx.picture_leases.of_lease(attempt.id)
    in_order = sorted(rows, key=lambda row: (-row.priority, row.turn, row.key))
    return ClaimReply(picture_lease=build_picture_lease(tx, ctx, attempt, in_order))


def something_waits(
    tx: Transaction, ctx: Context, claim: Claim, wanted: Wanted, pictures: PicturesWanted | None, *, at_ms: int
) -> bool:
    """Return True when a job or a picture waits that this claim could get."""
    jobs = for_jobs(wanted)
    if jobs is not None and tx.jobs.claimable(jobs):
        return True
    if pictures is None:
        return False
    pages = waiting_routes(tx, ctx, claim, pictures, at_ms=at_ms)
    return any(tx.picture_leases.claimable(replace(pictures, bases=page)) for page in pages)


def nothing_reply(
    tx: Transaction, ctx: Context, claim: Claim, wanted: Wanted, pictures: PicturesWanted | None, *, at_ms: int
) -> ClaimReply:
    """Return the reply to a claim that gets neither a job nor pictures."""
    if pictures is not None and pictures.batch_key is None:
        kept_ms = max(1, round(ctx.policy.routing_age_s * 1000))
        waiting = ctx.memory.base_queues(pictures.project_id, at_ms=at_ms, kept_ms=kept_ms)
        if waiting and (pictures.passed_over or not routes(tx, ctx, claim, pictures, at_ms=at_ms)):
            return ClaimReply(reason="models-elsewhere", detail=ELSEWHERE)
    jobs = for_jobs(wanted)
    return ClaimReply(reason="empty-queue", detail=NO_PICTURE) if jobs is None else empty_reply(tx, jobs)


def orders_of(replies: Sequence[object]) -> set[str]:
    """Return the ids of orders whose pictures are in these replies."""
    leases = [reply.picture_lease for reply in replies if isinstance(reply, ClaimReply)]
    return {picture.order_id for lease in leases if lease is not None for picture in lease.pictures}
