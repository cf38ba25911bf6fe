"""The fence before every write of a node: the attempt lives, and cannot end before the write is done."""

from collections.abc import Mapping, Sequence

from giornata.control.context import Context
from giornata.control.ports.node_queries.work_rows import AttemptRow, JobRow
from giornata.control.ports.store import Transaction
from giornata.domain.errors import Conflict, LeaseLost


def locked(tx: Transaction, attempt_id: str) -> tuple[JobRow, AttemptRow]:
    """Return the attempt, ended or not, and its job, held until the transaction ends. Raises LeaseLost for an
    unknown id.
    """
    job = tx.jobs.lock_of_attempt(attempt_id)
    attempt = tx.attempts.get(attempt_id)  # read after the lock was had: nobody ends it from here on
    if job is None or attempt is None:
        raise unknown(attempt_id)
    return job, attempt


def live(tx: Transaction, attempt_id: str) -> tuple[JobRow, AttemptRow]:
    """Lock an attempt that has not ended, as `locked` does. Raises LeaseLost."""
    job, attempt = locked(tx, attempt_id)
    refuse_ended(job, attempt)
    return job, attempt


def live_at_job(tx: Transaction, attempt_id: str) -> tuple[JobRow, AttemptRow]:
    """Lock a live attempt at a job, as `live` does. Raises Conflict for a lease of pictures."""
    job, attempt = live(tx, attempt_id)
    if attempt.pictures:
        raise Conflict("a lease of pictures has no checkpoints, artifacts or metrics: report its pictures")
    return job, attempt


def locked_each(tx: Transaction, attempt_ids: Sequence[str]) -> Mapping[str, tuple[JobRow, AttemptRow]]:
    """Lock several attempts by id, as `locked` does; those that never were are left out."""
    jobs = tx.jobs.lock_of_attempts(attempt_ids)
    attempts = tx.attempts.get_each(attempt_ids)  # read after the locks were had
    return {
        attempt_id: (jobs[attempt.job_id], attempt)
        for attempt_id, attempt in attempts.items()
        if attempt.job_id in jobs
    }


def live_each(tx: Transaction, attempt_ids: Sequence[str]) -> Mapping[str, tuple[JobRow, AttemptRow] | LeaseLost]:
    """Lock several live attempts, as `live` does; LeaseLost stands in the place of those that have ended or never
    were.
    """
    found = locked_each(tx, attempt_ids)

    def one(attempt_id: str) -> tuple[JobRow, AttemptRow] | LeaseLost:
        if attempt_id not in found:
            return unknown(attempt_id)
        job, attempt = found[attempt_id]
        return (job, attempt) if attempt.ended_at_ms is None else _ended(job, attempt)

    return {attempt_id: one(attempt_id) for attempt_id in attempt_ids}


def refuse_ended(job: JobRow, attempt: AttemptRow) -> None:
    """Raises LeaseLost, saying why it ended and what the job is now."""
    if attempt.ended_at_ms is not None:
        raise _ended(job, attempt)


def project_of_live_attempt(ctx: Context, attempt_id: str) -> str:
    """Return the project of an attempt that lives now, without a lock. Raises LeaseLost.

    Use it for work that is done before the transaction, such as verifying bytes; the transaction asks again.
    """
    with ctx.store.read() as tx:
        attempt = tx.attempts.get(attempt_id)
        job = tx.jobs.get(attempt.job_id) if attempt else None
    if job is None or attempt is None:
        raise unknown(attempt_id)
    refuse_ended(job, attempt)
    return job.project_id


def unknown(attempt_id: str) -> LeaseLost:
    """Return the answer to a caller that speaks for an attempt that never was."""
    return LeaseLost(f"there is no attempt {attempt_id}")


def _ended(job: JobRow, attempt: AttemptRow) -> LeaseLost:
    return LeaseLost(f"attempt {attempt.id} has ended ({attempt.reason}); the job is {job.state}: drop it")
