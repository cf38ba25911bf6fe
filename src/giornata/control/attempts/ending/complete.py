"""End a job because its node says that it is done."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from giornata.control.attempts.ending.end_attempt import AttemptEnd, end_attempts
from giornata.control.attempts.ending.end_picture_lease import complete_leases
from giornata.control.attempts.ending.judge_machines import judge_successes
from giornata.control.context import Context
from giornata.control.ports.node_queries.work_rows import ArtifactRow, AttemptRow, JobRow, NewEvent
from giornata.control.ports.store import Transaction
from giornata.control.storage.fence import locked_each, refuse_ended, unknown
from giornata.domain.errors import Conflict, GiornataError
from giornata.domain.jobs.job import JobEvent, JobState, next_state
from giornata.domain.jobs.reasons import Reason
from giornata.domain.machines.machine_ids import proves_against
from giornata.protocol.events import EventType
from giornata.protocol.node.work import AttemptEnded, CompleteAttempt
from giornata.protocol.specs import step_artifacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A report of completion, and the id of its attempt."""

    attempt_id: str
    report: CompleteAttempt


@dataclass(frozen=True, slots=True, kw_only=True)
class _LockedCompletion:
    """A report and the locked rows of its attempt. The attempt lives, and the job may succeed."""

    job: JobRow
    attempt: AttemptRow
    report: CompleteAttempt


def complete(ctx: Context, attempt_id: str, report: CompleteAttempt) -> AttemptEnded:
    """End the attempt and the job. Repeating it after success is answered alike.

    Raises Conflict unless this attempt has committed every artifact that it names, and LeaseLost when the attempt
    ended otherwise.
    """
    (answer,) = complete_each(ctx, [Completion(attempt_id=attempt_id, report=report)])
    if isinstance(answer, GiornataError):
        raise answer
    return answer


def complete_each(ctx: Context, done: Sequence[Completion]) -> list[AttemptEnded | GiornataError]:
    """Complete each of them in one transaction, as `complete` does. No two of one attempt."""
    now_ms = ctx.clock.now_ms()
    answers: dict[str, AttemptEnded | GiornataError] = {}
    held: list[_LockedCompletion] = []
    leases: list[tuple[JobRow, AttemptRow]] = []
    with ctx.store.begin() as tx:
        found = locked_each(tx, [each.attempt_id for each in done])
        committed = _committed(tx, [job.id for job, attempt in found.values() if not attempt.pictures])
        for each in done:
            if each.attempt_id not in found:
                answers[each.attempt_id] = unknown(each.attempt_id)
                continue
            job, attempt = found[each.attempt_id]
            try:
                if attempt.pictures:
                    leases += _live_lease(job, attempt)
                    answers[each.attempt_id] = AttemptEnded(job_state=job.state)
                    continue
                repeated = _answer(tx, job, attempt, each.report, committed.get(job.id, ()))
            except GiornataError as error:  # nothing was written for it
                answers[each.attempt_id] = error
                continue
            if repeated is None:
                held.append(_LockedCompletion(job=job, attempt=attempt, report=each.report))
            answers[each.attempt_id] = repeated or AttemptEnded(job_state=next_state(job.state, JobEvent.SUCCEED))
        if held:
            _succeed(tx, ctx, held, at_ms=now_ms)
        if leases:
            complete_leases(tx, ctx, leases, at_ms=now_ms)
    for _, attempt in leases:
        ctx.memory.forget_lease(attempt.id)
    return [answers[each.attempt_id] for each in done]


def _committed(tx: Transaction, job_ids: Sequence[str]) -> Mapping[str, Sequence[ArtifactRow]]:
    return tx.artifacts.of_jobs(job_ids) if job_ids else {}


def _live_lease(job: JobRow, attempt: AttemptRow) -> list[tuple[JobRow, AttemptRow]]:
    """Return the lease, or nothing for one that was completed before. Raises LeaseLost when it ended otherwise."""
    if attempt.reason is Reason.SUCCEEDED:
        return []
    refuse_ended(job, attempt)
    return [(job, attempt)]


def _answer(
    tx: Transaction, job: JobRow, attempt: AttemptRow, report: CompleteAttempt, committed: Sequence[ArtifactRow]
) -> AttemptEnded | None:
    """Return the answer to a report that is repeated; None for one that ends the attempt."""
    if attempt.reason is Reason.SUCCEEDED:
        return AttemptEnded(job_state=job.state)
    refuse_ended(job, attempt)
    next_state(job.state, JobEvent.SUCCEED)
    _require_artifacts(tx, job, attempt, report, committed)
    return None


def _succeed(tx: Transaction, ctx: Context, held: Sequence[_LockedCompletion], *, at_ms: int) -> None:
    same = {"ended_at_ms": at_ms, "error": None, "phase": "", "fruitless": 0}
    columns = {each.job.id: {"step": _step_of(each), "result": each.report.summary, **same} for each in held}
    tx.jobs.change_each([each.job for each in held], JobEvent.SUCCEED, columns)
    endings = [
        AttemptEnd(job=each.job, attempt=each.attempt, reason=Reason.SUCCEEDED, alive=True, step=each.report.step)
        for each in held
    ]
    end_attempts(tx, endings, at_ms=at_ms, events=[_succeeded(each, at_ms=at_ms) for each in held])
    for each in held:
        ctx.durations.ended(each.job, JobState.SUCCEEDED, at_ms=at_ms)
        if each.job.attempt_count > 1:
            _blame_machines(tx, each.job, each.attempt, at_ms=at_ms)
    judge_successes(tx, ctx, [(each.job, each.attempt) for each in held], at_ms=at_ms)


def _step_of(held: _LockedCompletion) -> int:
    """Return the step that the node reports; never below what is committed."""
    return max(held.report.step, held.job.committed_step)


def _succeeded(held: _LockedCompletion, *, at_ms: int) -> NewEvent:
    return NewEvent(
        job_id=held.job.id,
        project_id=held.job.project_id,
        type=EventType.JOB_SUCCEEDED,
        attempt_number=held.attempt.number,
        data={"step": held.report.step},
        at_ms=at_ms,
    )


def _require_artifacts(
    tx: Transaction, job: JobRow, attempt: AttemptRow, report: CompleteAttempt, rows: Sequence[ArtifactRow]
) -> None:
    committed = {row.name: row.attempt_id for row in rows}
    missing = [name for name in report.artifacts if committed.get(name) != attempt.id]
    if missing:
        raise Conflict(f"this attempt has not committed {', '.join(map(repr, missing))}: commit, then complete")
    # What an attempt left that came to grief is no result, but for pictures of steps that are behind the job.
    lasting = step_artifacts(job.kind, job.spec)
    strays = [name for name, owner in committed.items() if owner != attempt.id and name not in lasting]
    if strays:
        tx.artifacts.delete(job.id, strays)


def _blame_machines(tx: Transaction, job: JobRow, attempt: AttemptRow, *, at_ms: int) -> None:
    """Strike the machines on which the job crashed before: the job turned out to be good, so the fault was theirs."""
    for crashed in tx.attempts.crashed(job.id):
        if proves_against(attempt.machine_id, crashed.machine_id):
            tx.bans.strike(crashed, Reason.CRASHED, at_ms=at_ms)
