"""A node gives its job back, because it has to go, wants to, or was told to."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from giornata.control.context import Context
from giornata.control.judge_machines import judge_failure
from giornata.control.ports.store import Transaction
from giornata.control.ports.work_rows import AttemptRow, JobRow
from giornata.control.reported_end import end_as_reported, end_by_report
from giornata.control.requeue import requeue, settle_failure
from giornata.domain.job import JobState
from giornata.domain.reasons import BAN, REPORTABLE_RELEASES, STRIKE, Reason
from giornata.protocol.work import AttemptEnded, ReleaseAttempt


def release(ctx: Context, attempt_id: str, report: ReleaseAttempt) -> AttemptEnded:
    """End the attempt and queue the job again, at once and without blame; see `end_as_reported`.

    One that was told to go ends as the order says: see `ordered_end`.
    """

    def settle(tx: Transaction, job: JobRow, attempt: AttemptRow, at_ms: int) -> JobState:
        if report.reason is Reason.RELEASED and attempt.order_reason is not None:
            return ordered_end(tx, ctx, job, attempt, report, at_ms=at_ms)
        end_by_report(tx, job, attempt, report, at_ms=at_ms)
        return requeue(tx, ctx, job, attempt, at_ms=at_ms)

    return end_as_reported(ctx, attempt_id, report, settle, allowed=REPORTABLE_RELEASES)


def ordered_end(
    tx: Transaction, ctx: Context, job: JobRow, attempt: AttemptRow, report: ReleaseAttempt, *, at_ms: int
) -> JobState:
    """The server ordered the release: the attempt ends for the order's reason, and the job goes where that leads."""
    reason = Reason(attempt.order_reason or report.reason)
    end_by_report(tx, job, attempt, report.model_copy(update={"reason": reason}), at_ms=at_ms)
    return after_an_order(tx, ctx, job, attempt, reason, at_ms=at_ms)


def after_an_order(
    tx: Transaction, ctx: Context, job: JobRow, attempt: AttemptRow, reason: Reason, *, at_ms: int
) -> JobState:
    """What becomes of the job of an attempt that an order for this reason has ended, and of its machine."""
    return _AFTER[reason](tx, ctx, job, attempt, at_ms)


def _move(tx: Transaction, ctx: Context, job: JobRow, attempt: AttemptRow, at_ms: int) -> JobState:
    """Too slow: another machine goes on with the job, if there is one. See `settle_failure`."""
    if BAN[Reason.TOO_SLOW]:
        tx.judgements.ban(job.id, attempt.machine_id, Reason.TOO_SLOW, at_ms=at_ms)
    if STRIKE[Reason.TOO_SLOW]:
        tx.judgements.strike(attempt, Reason.TOO_SLOW, at_ms=at_ms)
    message = "the server took the job from a machine that was too slow"
    state = settle_failure(tx, ctx, job, attempt, Reason.TOO_SLOW, message=message, at_ms=at_ms)
    failed = state is JobState.FAILED
    judge_failure(tx, ctx, job, attempt, Reason.TOO_SLOW, at_ms=at_ms, job_failed=failed)
    return state


def _wait(tx: Transaction, ctx: Context, job: JobRow, attempt: AttemptRow, at_ms: int) -> JobState:
    """Its money was used up. The job is paused, unless the budget has been raised since."""
    return requeue(tx, ctx, job, attempt, at_ms=at_ms)


_After = Callable[[Transaction, Context, JobRow, AttemptRow, int], JobState]
_AFTER: Mapping[Reason, _After] = MappingProxyType({Reason.TOO_SLOW: _move, Reason.OVER_BUDGET: _wait})
