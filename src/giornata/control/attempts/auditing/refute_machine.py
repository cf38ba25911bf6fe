"""Strike a machine that two others contradict, and take back what it has made.

Failing memory and a dishonest owner give the same wrong bytes, and the server cannot tell them apart.
"""

from collections.abc import Sequence
from dataclasses import replace

from giornata.control.attempts.auditing.follow_doubt import DoubtedJob, retries_in_doubt, tell_readers
from giornata.control.attempts.ending.end_attempt import end_attempt
from giornata.control.attempts.ending.judge_machines import put_judged
from giornata.control.attempts.ending.requeue import requeue
from giornata.control.context import Context
from giornata.control.ports.node_queries.audit_store import ReplayAuditRow
from giornata.control.ports.node_queries.work_rows import INHERITED, AttemptRow, JobRow
from giornata.control.ports.store import Transaction
from giornata.domain.jobs.audits import AuditState
from giornata.domain.jobs.job import TERMINAL, JobState
from giornata.domain.jobs.reasons import STRIKE, Reason
from giornata.domain.machines.health import Failure, failed, newcomer
from giornata.protocol.events import EventType
from giornata.protocol.project.admin import ROOT_PROJECT

MOST_NAMED = 20
"""Jobs that the reason of a quarantine names."""


def refute_machine(tx: Transaction, ctx: Context, attempt_id: str, *, because: ReplayAuditRow, at_ms: int) -> None:
    """Hold the attempt's result against its machine, and take back what the machine committed since its last sound
    audit: unfinished jobs go back to where two machines agree, and finished ones are marked. The same goes
    for retries that go on from what is taken back. Jobs that read files in doubt are told.
    """
    attempt = tx.attempts.get(attempt_id)
    if attempt is None:
        return
    _, sound_at_ms = tx.audits.sound(attempt.machine_id)
    tainted = tx.audits.tainted(attempt.machine_id, since_ms=sound_at_ms or 0)
    locked = [job for each in tainted if (job := tx.jobs.lock(each.job_id)) is not None]
    back = [DoubtedJob(job=job, agreed=_agreed(tx, job)) for job in locked]
    for doubted in back:
        _take_back(tx, ctx, doubted, attempt.machine_id, because, at_ms=at_ms)
    for doubted in retries_in_doubt(tx, back):
        _take_back(tx, ctx, doubted, attempt.machine_id, because, at_ms=at_ms)
        back.append(doubted)
    tell_readers(tx, back, at_ms=at_ms)
    # The platform pays for what it cannot use.
    tx.audits.bill([attempt_id for each in tainted for attempt_id in each.attempt_ids], ROOT_PROJECT)
    doubt = _in_doubt(list(dict.fromkeys(each.job.id for each in back)))
    _strike(tx, ctx, attempt, because, doubt=doubt, at_ms=at_ms)


def _in_doubt(job_ids: Sequence[str]) -> str:
    """Return the jobs in words, for the operator; of many the first."""
    more = f" and {len(job_ids) - MOST_NAMED} more" if len(job_ids) > MOST_NAMED else ""
    return f"in doubt: {', '.join(job_ids[:MOST_NAMED])}{more}"


def _strike(
    tx: Transaction, ctx: Context, attempt: AttemptRow, because: ReplayAuditRow, *, doubt: str, at_ms: int
) -> None:
    """Quarantine the machine: two others contradict it, which is no suspicion any more."""
    policy = ctx.policy.health
    tx.bans.strike(attempt, Reason.AUDIT_MISMATCH, at_ms=at_ms)
    failure = Failure(
        attempt_id=attempt.id,
        job_id=because.job_id,
        reason=Reason.AUDIT_MISMATCH,
        began_at_ms=at_ms,  # beside no other failure: each mismatch counts
        at_ms=at_ms,
        weight=policy.quarantine_strikes,
    )
    key = (attempt.machine_id, "train")
    tx.machines.make_sure(newcomer(*key, policy=policy, at_ms=at_ms))
    for health in tx.machines.lock_each([key]).values():
        judged = failed(health, failure, policy=policy)
        put_judged(tx, ctx, health, replace(judged, reason=f"{judged.reason}; {doubt}"), at_ms=at_ms)


def _take_back(
    tx: Transaction, ctx: Context, doubted: DoubtedJob, machine_id: str, because: ReplayAuditRow, *, at_ms: int
) -> None:
    """Forget what the job has made since the last checkpoint that two machines agree on."""
    job, agreed, step = doubted.job, doubted.agreed, doubted.step
    if job.state not in TERMINAL:
        tx.jobs.update(job.id, committed_step=step, step=step)
        _interrupt(tx, ctx, replace(job, committed_step=step), machine_id, at_ms=at_ms)
    for row in tx.checkpoints.usable(job.id):
        if row.step > step:
            tx.checkpoints.reject(job.id, row.step)
    if agreed is not None:
        _restore(tx, job, agreed, at_ms=at_ms)
    suspect = job.state is JobState.SUCCEEDED
    if suspect:
        tx.jobs.update(job.id, suspect=True)
    data = {
        "name": "taken-back",
        "step": step,
        "audit_id": None if agreed is None else agreed.id,
        "machine_ids": [machine_id],
        "suspect": suspect,
        "message": f"an audit of steps {because.from_step} to {because.to_step} of a job contradicts a machine of it",
    }
    tx.events.add(job.id, job.project_id, EventType.NOTICE, None, data, at_ms)


def _agreed(tx: Transaction, job: JobRow) -> ReplayAuditRow | None:
    """Return the audit of the job's last checkpoint that two machines agree on, if its bytes are kept."""
    sound = [each for each in tx.audits.of_job(job.id) if each.state is AuditState.CONFIRMED and each.sha256]
    return max(sound, key=lambda each: each.to_step, default=None)


def _interrupt(tx: Transaction, ctx: Context, job: JobRow, machine_id: str, *, at_ms: int) -> None:
    """End the live attempt, which goes on from what is in doubt, and queue the job again."""
    attempt = tx.attempts.live_of_job(job.id)
    if attempt is None:
        return
    reason = Reason.AUDIT_MISMATCH if attempt.machine_id == machine_id else Reason.SUPERSEDED
    message = "an audit contradicts a machine that this job was trained on"
    end_attempt(tx, job, attempt, reason=reason, at_ms=at_ms, alive=False, message=message)
    if STRIKE[reason]:
        tx.bans.strike(attempt, reason, at_ms=at_ms)
        tx.bans.ban(job.id, machine_id, reason, at_ms=at_ms)
    if job.state is JobState.RUNNING:
        requeue(tx, ctx, job, attempt, at_ms=at_ms)


def _restore(tx: Transaction, job: JobRow, agreed: ReplayAuditRow, *, at_ms: int) -> None:
    """See that the agreed checkpoint is there and usable, although newer ones may have replaced it."""
    kept = tx.audits.checkpoint(agreed)
    if kept is None:
        return
    tx.checkpoints.put(
        job,
        step=agreed.to_step,
        sha256=kept.blob.sha256,
        size_bytes=kept.blob.size_bytes,
        attempt_number=agreed.attempt_number if agreed.job_id == job.id else INHERITED,
        at_ms=at_ms,
    )
