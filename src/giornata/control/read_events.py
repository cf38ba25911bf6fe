"""The history of a job."""

from giornata.control.context import Caller, Context
from giornata.control.instants import instant
from giornata.control.machine_names import machine_names
from giornata.control.pages import check_after, check_limit
from giornata.control.permissions import require_user
from giornata.control.read_jobs import require_job
from giornata.protocol.jobs import Event, EventPage


def read_events(ctx: Context, caller: Caller, job_id: str, after: int, limit: int) -> EventPage:
    """Events with ids above `after`, oldest first; `next` is the last one's id when there are more.

    A page may end before `limit`, for its bytes.

    Raises Forbidden, NotFound, InvalidInput.
    """
    require_user(caller)
    check_limit(limit)
    check_after(after, where="after")
    with ctx.store.read() as tx:
        require_job(tx, caller, job_id)
        names = machine_names(tx, ctx, caller)
        rows = tx.job_reads.events(
            job_id,
            project_id=caller.project_id,
            after=after,
            limit=limit,
            most_bytes=ctx.policy.max_page_bytes,
        )
    events = tuple(
        Event(
            id=row.id,
            job_id=row.job_id,
            type=row.type,
            at=instant(row.at_ms),
            attempt=row.attempt_number,
            data=names.event_data(row.data),
        )
        for row in rows.items
    )
    return EventPage(items=events, next=str(events[-1].id) if rows.more else None)
