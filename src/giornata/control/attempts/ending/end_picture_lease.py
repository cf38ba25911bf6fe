"""End leases of pictures as their nodes report. What a lease had not drawn is queued again."""

from collections.abc import Sequence
from dataclasses import replace

from giornata.control.attempts.ending.end_attempt import AttemptEnd, end_attempts
from giornata.control.attempts.ending.judge_machines import judge_drawers, judge_failure
from giornata.control.context import Context
from giornata.control.pictures.failed_pictures import give_back_all
from giornata.control.ports.node_queries.work_rows import AttemptRow, JobRow
from giornata.control.ports.store import Transaction
from giornata.domain.generation.picture import LEASE_KIND, is_undecided
from giornata.domain.jobs.job import JobState
from giornata.domain.jobs.reasons import STRIKE, Reason


def complete_leases(tx: Transaction, ctx: Context, ended: Sequence[tuple[JobRow, AttemptRow]], *, at_ms: int) -> None:
    """End live leases whose nodes are done with them; pictures without a result are queued again."""
    endings = [AttemptEnd(job=job, attempt=attempt, reason=Reason.SUCCEEDED, alive=True) for job, attempt in ended]
    end_attempts(tx, endings, at_ms=at_ms)
    tx.picture_leases.give_back_rest([attempt.id for _, attempt in ended])
    judge_drawers(tx, ctx, [attempt.machine_id for _, attempt in ended], at_ms=at_ms)


def fail_lease(
    tx: Transaction, ctx: Context, job: JobRow, attempt: AttemptRow, reason: Reason, *, message: str, at_ms: int
) -> JobState:
    """Give back the pictures of a lease that has just ended with a fault; blame the machine if it was the machine's.

    A fault of unknown cause counts against the machine only when the lease had one picture.
    """
    if STRIKE[reason]:
        tx.bans.strike(attempt, reason, at_ms=at_ms)
    give_back_all(tx, ctx, attempt, reason, message=message, at_ms=at_ms)
    if not is_undecided(reason) or attempt.pictures == 1:
        judge_failure(tx, ctx, _as_of_leases(job), attempt, reason, at_ms=at_ms, job_failed=False)
    return job.state


def _as_of_leases(job: JobRow) -> JobRow:
    """Return the order with the kind by which machines that draw are judged, as a job that crashed nowhere."""
    return replace(job, kind=LEASE_KIND, attempt_count=1)
