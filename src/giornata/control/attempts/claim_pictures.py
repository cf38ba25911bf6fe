"""Decide whether a claim gets a job or pictures, and lease the pictures.

A claim for both gets what has the higher priority. Of equal priority every other claim, by its request id, looks for
pictures first: turns of jobs and of pictures count different things.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from giornata.control.attempts.admit import Admitted
from giornata.control.attempts.claim_refusals import empty_reply
from giornata.control.context import Context
from giornata.control.pictures.lease import build_picture_lease, lease_pictures
from giornata.control.ports.picture_store import PicturesWanted
from giornata.control.ports.store import Transaction
from giornata.control.ports.work_rows import AttemptRow, Wanted
from giornata.domain.picture import ORDER_KINDS
from giornata.protocol.pictures import PictureLease
from giornata.protocol.work import Claim, ClaimReply, NodeInfo

NO_PICTURE = "no picture is waiting that this node may draw"


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
    return draw(tx, ctx, {number: each for number, each in drawers.items() if _pictures_first(tx, each)}, at_ms=at_ms)


def draw(tx: Transaction, ctx: Context, drawers: Mapping[int, Drawer], *, at_ms: int) -> dict[int, ClaimReply]:
    """Lease pictures to these claims in their order; return the leases by number."""
    found = {}
    for number, each in sorted(drawers.items()):
        if (lease := _lease(tx, ctx, each, at_ms=at_ms)) is not None:
            found[number] = ClaimReply(picture_lease=lease)
    return found


def _pictures_first(tx: Transaction, drawer: Drawer) -> bool:
    """A canary goes before everything."""
    wanted = drawer.admitted.wanted
    jobs = None if wanted is None else for_jobs(wanted)
    if jobs is None or drawer.admitted.on_trial:
        return not drawer.admitted.on_trial
    of_pictures = tx.picture_leases.head_priority(drawer.wanted)
    if of_pictures is None:
        return False
    of_jobs = tx.jobs.head_priority(jobs)
    if of_jobs is None or of_jobs == of_pictures:
        return of_jobs is None or zlib.crc32(drawer.claim.request_id.encode()) % 2 == 0
    return of_pictures > of_jobs


def _lease(tx: Transaction, ctx: Context, drawer: Drawer, *, at_ms: int) -> PictureLease | None:
    """A second look follows the first: others may just have taken the whole batch that stood first."""
    for _ in range(2):
        request_id, price = drawer.claim.request_id, drawer.price
        lease = lease_pictures(tx, ctx, drawer.wanted, drawer.node, request_id, price=price, at_ms=at_ms)
        if lease is not None:
            return lease
    return None


def same_pictures(tx: Transaction, ctx: Context, attempt: AttemptRow) -> ClaimReply:
    """Answer a claim whose reply got lost: the lease has the pictures that it still has to draw."""
    rows = tx.picture_leases.of_lease(attempt.id)
    in_order = sorted(rows, key=lambda row: (-row.priority, row.turn, row.key))
    return ClaimReply(picture_lease=build_picture_lease(tx, ctx, attempt, in_order))


def something_waits(tx: Transaction, wanted: Wanted, pictures: PicturesWanted | None) -> bool:
    """Return True when a job or a picture waits that this claim could get."""
    jobs = for_jobs(wanted)
    if jobs is not None and tx.jobs.claimable(jobs):
        return True
    return pictures is not None and tx.picture_leases.claimable(pictures)


def nothing_reply(tx: Transaction, wanted: Wanted) -> ClaimReply:
    """Return the reply to a claim that gets neither a job nor pictures."""
    jobs = for_jobs(wanted)
    return ClaimReply(reason="empty-queue", detail=NO_PICTURE) if jobs is None else empty_reply(tx, jobs)


def orders_of(replies: Sequence[object]) -> set[str]:
    """Return the ids of orders whose pictures are in these replies."""
    leases = [reply.picture_lease for reply in replies if isinstance(reply, ClaimReply)]
    return {picture.order_id for lease in leases if lease is not None for picture in lease.pictures}
