"""The owner ends a job."""

from giornata.control.context import Caller, Context
from giornata.control.permissions import require_user
from giornata.control.read_jobs import own_job, read_job
from giornata.control.stop_job import stop_job
from giornata.domain.errors import NotFound
from giornata.domain.job import JobEvent, JobState
from giornata.protocol.jobs import Job


def cancel(ctx: Context, caller: Caller, job_id: str) -> Job:
    """Cancel a job that has not ended; its node is fenced at once. Repeating it changes nothing.

    Raises Forbidden, NotFound, and IllegalTransition for a job that succeeded, failed or expired.
    """
    require_user(caller)
    with ctx.store.begin() as tx:
        own_job(tx, caller, job_id)
        job = tx.jobs.lock(job_id)
        if job is None:
            raise NotFound(f"there is no job {job_id}")
        if job.state is not JobState.CANCELED:
            stop_job(
                tx,
                ctx,
                job,
                JobEvent.CANCEL,
                at_ms=ctx.clock.now_ms(),
                message="canceled by its owner",
                data={"by": caller.key_id},
            )
        return read_job(ctx, tx, caller, job_id)
