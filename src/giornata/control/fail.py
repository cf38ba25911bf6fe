"""A node says that its attempt cannot go on, and why."""

from giornata.control.context import Context
from giornata.control.end_attempt import end_attempt
from giornata.control.fence import locked, refuse_ended
from giornata.control.ports.store import Transaction
from giornata.control.ports.work_store import AttemptRow, JobRow
from giornata.control.requeue import fail_job, fruitless_after, requeue, verdict
from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.job import JobState
from giornata.domain.reasons import BAN, REPORTABLE_FAILURES, STRIKE
from giornata.protocol.work import AttemptEnded, FailAttempt


def fail(ctx: Context, attempt_id: str, report: FailAttempt) -> AttemptEnded:
    """End the attempt; by the reason's row in the tables ban and strike the machine; requeue the job, or fail it.

    All in one transaction. A repeated report counts once and is answered alike. Raises LeaseLost when the attempt
    ended otherwise, and InvalidInput for a reason that is not a node's to give.
    """
    if report.reason not in REPORTABLE_FAILURES:
        allowed = ", ".join(sorted(REPORTABLE_FAILURES))
        raise InvalidInput(
            [Fault(where="reason", message=f"a node cannot fail with {report.reason}", hint=f"one of {allowed}")]
        )
    now_ms = ctx.clock.now_ms()
    with ctx.store.begin() as tx:
        job, attempt = locked(tx, attempt_id)
        if attempt.ended_at_ms is not None and attempt.reason is report.reason:
            return AttemptEnded(job_state=job.state)
        refuse_ended(job, attempt)
        end_attempt(
            tx,
            job,
            attempt,
            reason=report.reason,
            at_ms=now_ms,
            alive=True,
            message=report.message,
            step=report.step,
            exit_code=report.exit_code,
            log_tail=report.log_tail,
        )
        _judge(tx, job, attempt, report, at_ms=now_ms)
        return AttemptEnded(job_state=_settle(tx, ctx, job, attempt, report, at_ms=now_ms))


def _judge(tx: Transaction, job: JobRow, attempt: AttemptRow, report: FailAttempt, *, at_ms: int) -> None:
    if BAN[report.reason]:
        tx.judgements.ban(job.id, attempt.machine_id, report.reason, at_ms=at_ms)
    if STRIKE[report.reason]:
        tx.judgements.strike(attempt, report.reason, at_ms=at_ms)


def _settle(
    tx: Transaction, ctx: Context, job: JobRow, attempt: AttemptRow, report: FailAttempt, *, at_ms: int
) -> JobState:
    fruitless = fruitless_after(job, attempt)
    why = verdict(tx, ctx, job, attempt, reason=report.reason, fruitless=fruitless)
    if why is None:
        return requeue(tx, job, attempt, at_ms=at_ms, fruitless=fruitless)
    error = f"{report.message} ({report.reason}: {why})"
    return fail_job(tx, job, attempt, error=error, faults=report.faults, at_ms=at_ms)
