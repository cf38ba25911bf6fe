"""A node gives its job back, because it has to go or wants to."""

from giornata.control.context import Context
from giornata.control.end_attempt import end_attempt
from giornata.control.fence import locked, refuse_ended
from giornata.control.requeue import requeue
from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.reasons import REPORTABLE_RELEASES
from giornata.protocol.work import AttemptEnded, ReleaseAttempt


def release(ctx: Context, attempt_id: str, report: ReleaseAttempt) -> AttemptEnded:
    """End the attempt and queue the job again, at once and without blame. Repeating it changes nothing.

    Raises LeaseLost when the attempt ended otherwise, and InvalidInput for a reason that is no release.
    """
    if report.reason not in REPORTABLE_RELEASES:
        allowed = ", ".join(sorted(REPORTABLE_RELEASES))
        raise InvalidInput(
            [Fault(where="reason", message=f"{report.reason} is no way to give a job back", hint=f"one of {allowed}")]
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
        )
        return AttemptEnded(job_state=requeue(tx, job, attempt, at_ms=now_ms))
