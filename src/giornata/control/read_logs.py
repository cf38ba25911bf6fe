"""The log of a job."""

from giornata.control.context import Caller, Context
from giornata.control.instants import instant
from giornata.control.pages import check_after, check_limit
from giornata.control.permissions import require_user
from giornata.control.read_jobs import own_job
from giornata.protocol.jobs import LogLine, LogPage


def read_logs(ctx: Context, caller: Caller, job_id: str, after: int, limit: int) -> LogPage:
    """Lines with ids above `after`, oldest first; `next` is the last one's id when there are more.

    Raises Forbidden, NotFound, InvalidInput.
    """
    require_user(caller)
    check_limit(limit)
    check_after(after, where="after")
    with ctx.store.read() as tx:
        own_job(tx, caller, job_id)
        rows = tx.job_reads.logs(job_id, project_id=caller.project_id, after=after, limit=limit + 1)
    lines = tuple(
        LogLine(id=row.id, attempt=row.attempt_number, at=instant(row.at_ms), line=row.line) for row in rows[:limit]
    )
    return LogPage(items=lines, next=str(lines[-1].id) if len(rows) > limit else None)
