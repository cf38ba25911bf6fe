"""Another go at a job that ended badly, or that waits for another machine."""

from dataclasses import replace

from giornata.control.context import Caller, Context
from giornata.control.lift_bans import lift
from giornata.control.permissions import require_user
from giornata.control.ports.records import JobRecord
from giornata.control.ports.store import Transaction
from giornata.control.read_jobs import own_job, read_job
from giornata.control.reserve import reserve
from giornata.control.submit import enqueue
from giornata.domain.errors import IllegalTransition, NotFound
from giornata.domain.job import JobState
from giornata.protocol.jobs import Job
from giornata.protocol.specs import shape_key_of

RAISE_ITS_BUDGET = "it goes on by itself when its budget is raised: giornata budget ID AMOUNT, or the project's"
RETRYABLE = frozenset({JobState.FAILED, JobState.CANCELED, JobState.EXPIRED})


def retry(ctx: Context, caller: Caller, job_id: str) -> Job:
    """A new job with the same spec and seed that goes on from the old one's checkpoints.

    While a retry is queued or running, asking again gives that one. An interrupted job that is queued is itself the
    one to be tried: its bans are lifted, so that every machine may have it now. Raises Forbidden, NotFound, and
    IllegalTransition for a job that succeeded, runs, is paused, or has not begun.
    """
    require_user(caller)
    with ctx.store.begin() as tx:
        own_job(tx, caller, job_id)
        old = tx.submission.lock(job_id, project_id=caller.project_id)
        if old is None:
            raise NotFound(f"there is no job {job_id}")
        if old.state == JobState.QUEUED and old.interrupted:
            return _without_bans(ctx, tx, caller, old)
        if old.state not in RETRYABLE:
            hint = f"; {RAISE_ITS_BUDGET}" if old.state == JobState.PAUSED else ""
            raise IllegalTransition(f"a job that is {old.state} cannot be retried{hint}")
        new_id = tx.submission.live_retry(job_id, project_id=caller.project_id)
        if new_id is None:
            new_id = ctx.names.new("job")
            enqueue(tx, reserve(tx, ctx, _afresh(old, new_id, ctx.clock.now_ms())))
            tx.submission.inherit_checkpoints(source=job_id, target=new_id, project_id=caller.project_id)
        return read_job(ctx, tx, caller, new_id)


def _without_bans(ctx: Context, tx: Transaction, caller: Caller, job: JobRecord) -> Job:
    bans = tx.bans.of_job(job.id)
    if bans:
        machine_ids = [ban.machine_id for ban in bans]
        lift(tx, job, machine_ids, because="the job's owner asked for another try", at_ms=ctx.clock.now_ms())
    return read_job(ctx, tx, caller, job.id)


def _afresh(old: JobRecord, job_id: str, now_ms: int) -> JobRecord:
    """The same request, with as much time and money as it was given the first time."""
    given_ms = None if old.deadline_at_ms is None else old.deadline_at_ms - old.created_at_ms
    return replace(
        old,
        id=job_id,
        name=job_id if old.name == old.id else old.name,
        state=JobState.QUEUED,
        interrupted=False,
        retry_of=old.id,
        shape_key=shape_key_of(old.kind, old.spec),  # one of long ago has none
        attempt_id=None,
        step=0,
        committed_step=0,
        phase="",
        error=None,
        faults=[],
        result={},
        created_at_ms=now_ms,
        started_at_ms=None,
        ended_at_ms=None,
        deadline_at_ms=None if given_ms is None else now_ms + given_ms,
    )
