"""Jobs that were not done at their deadline."""

from giornata.control.context import Context
from giornata.control.stop_job import stop_job
from giornata.domain.job import TERMINAL, JobEvent

AT_MOST = 200


def expire_deadlines(ctx: Context) -> int:
    """Expire jobs whose deadline has passed, running or not; returns how many. A loop calls it again and again."""
    with ctx.store.only_here("expire") as ours:
        if not ours:
            return 0
        with ctx.store.read() as tx:
            late = tx.jobs.past_deadline(at_ms=ctx.clock.now_ms(), limit=AT_MOST)
        return sum(_expire(ctx, job_id) for job_id in late)


def _expire(ctx: Context, job_id: str) -> bool:
    now_ms = ctx.clock.now_ms()
    with ctx.store.begin() as tx:
        job = tx.jobs.lock(job_id)
        if job is None or job.state in TERMINAL or job.deadline_at_ms is None or job.deadline_at_ms > now_ms:
            return False
        stop_job(tx, ctx, job, JobEvent.EXPIRE, at_ms=now_ms, message="the job's deadline passed", data={})
        return True
