"""An attempt ends because its node says so: what failing and giving back have in common."""

from collections.abc import Callable, Collection

from giornata.control.context import Context
from giornata.control.end_attempt import end_attempt
from giornata.control.fence import locked, refuse_ended
from giornata.control.ports.store import Transaction
from giornata.control.ports.work_rows import AttemptRow, JobRow
from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.job import JobState
from giornata.domain.reasons import Reason
from giornata.protocol.work import AttemptEnded, FailAttempt, ReleaseAttempt

Settle = Callable[[Transaction, JobRow, AttemptRow, int], JobState]
"""Ends the attempt and says what becomes of the job: the transaction, the job, the attempt as it was, and now (ms) →
the job's new state."""


def end_as_reported(
    ctx: Context,
    attempt_id: str,
    report: FailAttempt | ReleaseAttempt,
    settle: Settle,
    *,
    allowed: Collection[Reason],
) -> AttemptEnded:
    """End the attempt for the report's reason and settle the job, in one transaction.

    A repeated report counts once and is answered alike. Raises LeaseLost when the attempt ended otherwise, and
    InvalidInput for a reason that is not `allowed`.
    """
    if report.reason not in allowed:
        hint = f"one of {', '.join(sorted(allowed))}"
        raise InvalidInput(
            [Fault(where="reason", message=f"{report.reason} is not for a node to say here", hint=hint)]
        )
    now_ms = ctx.clock.now_ms()
    with ctx.store.begin() as tx:
        job, attempt = locked(tx, attempt_id)
        if attempt.ended_at_ms is not None and attempt.reason in {report.reason, _ordered(attempt, report)}:
            return AttemptEnded(job_state=job.state)
        refuse_ended(job, attempt)
        return AttemptEnded(job_state=settle(tx, job, attempt, now_ms))


def _ordered(attempt: AttemptRow, report: FailAttempt | ReleaseAttempt) -> Reason | None:
    """How the attempt ends when it is given back because the server wanted it."""
    obeys = isinstance(report, ReleaseAttempt) and report.reason is Reason.RELEASED
    return Reason(attempt.order_reason) if obeys and attempt.order_reason is not None else None


def end_by_report(
    tx: Transaction,
    job: JobRow,
    attempt: AttemptRow,
    report: FailAttempt | ReleaseAttempt,
    *,
    at_ms: int,
    shared_fault: bool = False,
) -> None:
    """The attempt's end, with all that the report says of it; see `end_attempt`."""
    failure = report if isinstance(report, FailAttempt) else None
    end_attempt(
        tx,
        job,
        attempt,
        reason=report.reason,
        at_ms=at_ms,
        alive=True,
        message=report.message,
        step=report.step,
        exit_code=failure.exit_code if failure else None,
        log_tail=failure.log_tail if failure else "",
        shared_fault=shared_fault,
    )
