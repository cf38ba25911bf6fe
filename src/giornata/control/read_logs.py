"""The log of a job."""

from giornata.control.context import Caller, Context
from giornata.control.instants import instant
from giornata.control.pages import check_after, check_limit
from giornata.control.permissions import require_user
from giornata.control.read_jobs import require_job
from giornata.protocol.jobs import LogLine, LogPage


def read_logs(ctx: Context, caller: Caller, job_id: str, after: int, limit: int) -> LogPage:
    """Lines with ids above `after`, oldest first; `next` is the last one's id when there are more.

    A page may end before `limit`, for its bytes.

    Raises Forbidden, NotFound, InvalidInput.
    """
    require_user(caller)
    check_limit(limit)
    check_after(after, where="after")
    with ctx.store.read() as tx:
        require_job(tx, caller, job_id)
        rows = tx.job_reads.logs(
            job_id,
            project_id=caller.project_id,
            after=after,
            limit=limit,
            most_bytes=ctx.policy.max_page_bytes,
        )
    lines = tuple(
        LogLine(id=row.id, attempt=row.attempt_number, at=instant(row.at_ms), line=row.line) for row in rows.items
    )
    return LogPage(items=lines, next=str(lines[-1].id) if rows.more else None)
