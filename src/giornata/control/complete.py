"""A node says that the job is done."""

from giornata.control.context import Context
from giornata.control.end_attempt import end_attempt
from giornata.control.fence import locked, refuse_ended
from giornata.control.judge_machines import judge_success
from giornata.control.ports.store import Transaction
from giornata.control.ports.work_rows import AttemptRow, JobRow
from giornata.domain.errors import Conflict
from giornata.domain.job import JobEvent
from giornata.domain.machine_ids import proves_against
from giornata.domain.reasons import Reason
from giornata.protocol.events import EventType
from giornata.protocol.specs import step_artifacts
from giornata.protocol.work import AttemptEnded, CompleteAttempt


def complete(ctx: Context, attempt_id: str, report: CompleteAttempt) -> AttemptEnded:
    """End the attempt and the job. Repeating it after success is answered alike.

    Raises Conflict unless this attempt has committed every artifact that it names, and LeaseLost when the attempt
    ended otherwise.
    """
    now_ms = ctx.clock.now_ms()
    with ctx.store.begin() as tx:
        job, attempt = locked(tx, attempt_id)
        if attempt.reason is Reason.SUCCEEDED:
            return AttemptEnded(job_state=job.state)
        refuse_ended(job, attempt)
        _require_artifacts(tx, job, attempt, report)
        state = tx.jobs.change(
            job,
            JobEvent.SUCCEED,
            ended_at_ms=now_ms,
            step=max(report.step, job.committed_step),
            result=report.summary,
            error=None,
            phase="",
            fruitless=0,
        )
        end_attempt(tx, job, attempt, reason=Reason.SUCCEEDED, at_ms=now_ms, alive=True, step=report.step)
        _blame_machines(tx, job, attempt, at_ms=now_ms)
        judge_success(tx, ctx, job, attempt, at_ms=now_ms)
        data = {"step": report.step}
        tx.events.add(job.id, job.project_id, EventType.JOB_SUCCEEDED, attempt.number, data, now_ms)
        return AttemptEnded(job_state=state)


def _require_artifacts(tx: Transaction, job: JobRow, attempt: AttemptRow, report: CompleteAttempt) -> None:
    committed = {row.name: row.attempt_id for row in tx.artifacts.of_job(job.id)}
    missing = [name for name in report.artifacts if committed.get(name) != attempt.id]
    if missing:
        raise Conflict(f"this attempt has not committed {', '.join(map(repr, missing))}: commit, then complete")
    # What an attempt left that came to grief is no result, but for pictures of steps that are behind the job.
    lasting = step_artifacts(job.kind, job.spec)
    strays = [name for name, owner in committed.items() if owner != attempt.id and name not in lasting]
    if strays:
        tx.artifacts.delete(job.id, strays)


def _blame_machines(tx: Transaction, job: JobRow, attempt: AttemptRow, *, at_ms: int) -> None:
    """The job turned out to be good: whoever it crashed on before has a fault of its own."""
    for crashed in tx.attempts.crashed(job.id):
        if proves_against(attempt.machine_id, crashed.machine_id):
            tx.judgements.strike(crashed, Reason.CRASHED, at_ms=at_ms)
