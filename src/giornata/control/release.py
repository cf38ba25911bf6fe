"""A node gives its job back, because it has to go or wants to."""

from giornata.control.context import Context
from giornata.control.ports.store import Transaction
from giornata.control.ports.work_rows import AttemptRow, JobRow
from giornata.control.reported_end import end_as_reported, end_by_report
from giornata.control.requeue import requeue
from giornata.domain.job import JobState
from giornata.domain.reasons import REPORTABLE_RELEASES, Reason
from giornata.protocol.work import AttemptEnded, ReleaseAttempt


def release(ctx: Context, attempt_id: str, report: ReleaseAttempt) -> AttemptEnded:
    """End the attempt and queue the job again, at once and without blame; see `end_as_reported`."""

    def settle(tx: Transaction, job: JobRow, attempt: AttemptRow, at_ms: int) -> JobState:
        end_by_report(tx, job, attempt, report, at_ms=at_ms, reason=_reason(attempt, report))
        return requeue(tx, ctx, job, attempt, at_ms=at_ms)

    return end_as_reported(ctx, attempt_id, report, settle, allowed=REPORTABLE_RELEASES)


def _reason(attempt: AttemptRow, report: ReleaseAttempt) -> Reason:
    """One that obeys an order to release ends for the reason of the order."""
    if report.reason is not Reason.RELEASED or attempt.order_reason is None:
        return report.reason
    return Reason(attempt.order_reason)
