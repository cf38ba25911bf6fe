"""The metrics of a job."""

from giornata.control.context import Caller, Context
from giornata.control.instants import instant
from giornata.control.pages import check_after, check_limit
from giornata.control.permissions import require_user
from giornata.control.read_jobs import require_job
from giornata.protocol.jobs import MetricPage, MetricPoint


def read_metrics(ctx: Context, caller: Caller, job_id: str, after_step: int, limit: int) -> MetricPage:
    """Points of steps above `after_step` (-1 for all), ascending; `next` is the last step when there are more.

    A page may end before `limit`, for its bytes.

    Raises Forbidden, NotFound, InvalidInput.
    """
    require_user(caller)
    check_limit(limit)
    check_after(after_step, where="after_step")
    with ctx.store.read() as tx:
        require_job(tx, caller, job_id)
        rows = tx.job_reads.metrics(
            job_id,
            project_id=caller.project_id,
            after_step=after_step,
            limit=limit,
            most_bytes=ctx.policy.max_page_bytes,
        )
    points = tuple(
        MetricPoint(step=row.step, attempt=row.attempt_number, at=instant(row.at_ms), values=row.values)
        for row in rows.items
    )
    return MetricPage(items=points, next=str(points[-1].step) if rows.more else None)
