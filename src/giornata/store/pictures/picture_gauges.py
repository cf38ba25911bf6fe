"""Count the pictures that have not ended, from rows of open orders and of live leases, and never from the queue."""

from typing import Any

import sqlalchemy as sa

from giornata.control.ports.node_queries.gauges import PictureGauges
from giornata.domain.generation.picture import PictureState
from giornata.domain.jobs.job import JobState
from giornata.store.jobs.attempts import LIVE
from giornata.store.pictures.picture_orders import IS_OPEN
from giornata.store.schema import attempts, jobs, picture_orders, pictures

_LEASES = sa.select(sa.func.count()).where(LIVE, attempts.c.pictures > 0)


def _open() -> sa.Select[bool, int, int, Any]:
    """Select (paused, waiting, leased, oldest) for the orders that are paused, and for the others.

    Reads ix_picture_orders_open, and through ix_pictures_lease the pictures of live leases.
    """
    leases = sa.select(attempts.c.id).where(LIVE, attempts.c.pictures > 0)
    leased = (
        sa.select(pictures.c.order_id, sa.func.count().label("leased"))
        .where(pictures.c.lease.in_(leases), pictures.c.state == PictureState.LEASED)
        .group_by(pictures.c.order_id)
        .cte("leased_pictures")
    )
    of_order = sa.func.coalesce(leased.c.leased, 0)
    waiting = picture_orders.c.pictures - picture_orders.c.ended - of_order
    paused = jobs.c.state == JobState.PAUSED
    return (
        sa.select(
            paused.label("paused"),
            sa.cast(sa.func.sum(waiting), sa.BigInteger).label("waiting"),
            sa.cast(sa.func.sum(of_order), sa.BigInteger).label("leased"),
            sa.func.min(sa.case((waiting > 0, jobs.c.created_at_ms))).label("oldest"),
        )
        .select_from(
            picture_orders.join(jobs, jobs.c.id == picture_orders.c.order_id).outerjoin(
                leased, leased.c.order_id == picture_orders.c.order_id
            )
        )
        .where(IS_OPEN)
        .group_by(paused)
    )


# Made once: building a statement costs more than running it.
OPEN_PICTURES = _open()


def picture_gauges(connection: sa.Connection) -> PictureGauges:
    """Return the counts of pictures that wait or are leased, and of the live leases."""
    found = {bool(row.paused): row for row in connection.execute(OPEN_PICTURES)}
    going, paused = found.get(False), found.get(True)
    return PictureGauges(
        queued=going.waiting if going else 0,
        paused=paused.waiting if paused else 0,
        leased=sum(row.leased for row in found.values()),
        oldest_queued_at_ms=going.oldest if going else None,
        leases=connection.scalar(_LEASES) or 0,
    )
