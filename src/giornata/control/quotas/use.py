"""The use that a project makes of its quotas, and refusals of what has no room in them.

A count that decides is made while the project's row is held, so that of two requests at once only one gets the last
place. Nothing is counted for a project without such a limit.
"""

from giornata.control.context import Foundations
from giornata.control.ports.store import Transaction
from giornata.domain.billing.quotas import (
    NO_QUOTAS,
    NO_USE,
    UNLIMITED,
    QuotaRequest,
    Quotas,
    QuotaStanding,
    QuotaUse,
    day_start_ms,
    over_quota,
)
from giornata.domain.errors import OverQuota


def quotas_of(tx: Transaction, project_id: str) -> Quotas:
    """Return the project's quotas; none for a project that does not exist."""
    return tx.projects.get(project_id) or NO_QUOTAS


def quota_use(tx: Transaction, ctx: Foundations, project_id: str, quotas: Quotas) -> QuotaUse:
    """Return what the project has of those things that are limited, as this transaction sees it."""
    if not quotas.counts_jobs:
        return NO_USE
    at_ms = ctx.clock.now_ms()
    queued, pictures, stored = quotas.max_queued_jobs, quotas.max_pictures_per_day, quotas.max_stored_bytes
    orders = quotas.max_open_orders
    return QuotaUse(
        at_ms=at_ms,
        queued_jobs=0 if queued is None else tx.quotas.queued(project_id),
        pictures_today=0 if pictures is None else pictures_today(tx, project_id, at_ms=at_ms),
        stored_bytes=0 if stored is None else stored_bytes(tx, ctx, project_id, at_ms=at_ms),
        open_orders=0 if orders is None else tx.quotas.open_orders(project_id),
    )


def pictures_today(tx: Transaction, project_id: str, *, at_ms: int) -> int:
    """Return the number of pictures that the project ordered on this day in UTC."""
    return tx.quotas.pictures_since(project_id, since_ms=day_start_ms(at_ms))


def stored_bytes(tx: Transaction, ctx: Foundations, project_id: str, *, at_ms: int) -> int:
    """Return the bytes that the project stores. Those of its pictures may be a minute old: there are millions, and
    only nodes add to them, which are not refused.
    """
    return drawn_bytes(tx, ctx, project_id, at_ms=at_ms) + tx.quotas.blob_bytes(project_id)


def drawn_bytes(tx: Transaction, ctx: Foundations, project_id: str, *, at_ms: int) -> int:
    """Return the bytes of the project's pictures, as of now or of the last minute."""
    drawn = ctx.memory.quotas.picture_bytes(project_id, at_ms=at_ms)
    if drawn is None:
        drawn = tx.quotas.picture_bytes(project_id)
        ctx.memory.quotas.remember_picture_bytes(project_id, drawn, at_ms=at_ms)
    return drawn


def standing_of(
    tx: Transaction, ctx: Foundations, project_id: str, *, project: Quotas | None = None, hold: bool = False
) -> QuotaStanding:
    """Return the project's limits and their use. `project` are its limits, where they have been read already.

    With `hold` no other request of the project counts before the transaction ends.
    """
    quotas = project or quotas_of(tx, project_id)
    if not quotas.bound_jobs:
        return UNLIMITED
    if hold and quotas.counts_jobs:
        tx.submission.hold_project(project_id)
    return QuotaStanding(quotas=quotas, use=quota_use(tx, ctx, project_id, quotas))


def require_stored_room(
    tx: Transaction, ctx: Foundations, project_id: str, size_bytes: int, *, where: str, hold: bool
) -> None:
    """Raises OverQuota when the project may not store so many bytes more; `hold` as in `standing_of`."""
    quotas = quotas_of(tx, project_id)
    if quotas.max_stored_bytes is None or not size_bytes:
        return
    standing = standing_of(tx, ctx, project_id, project=quotas, hold=hold)
    faults = tuple(over_quota(standing, QuotaRequest(stored_bytes=size_bytes), where=where))
    if faults:
        raise OverQuota(faults)
