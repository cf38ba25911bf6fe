"""Handle a checkpoint that a node could not fetch. The server looks itself before it believes that the bytes are
gone.
"""

from giornata.control.context import Context
from giornata.control.ports.node_queries.work_rows import AttemptRow, CheckpointRow, JobRow
from giornata.control.ports.store import Transaction
from giornata.control.storage.fence import live_at_job, refuse_ended
from giornata.control.storage.look_at_bytes import FoundBytes, look_at_bytes, note_look
from giornata.domain.errors import LeaseLost, NotFound, Unavailable
from giornata.protocol.events import EventType


def reject_checkpoint(ctx: Context, attempt_id: str, step: int, message: str) -> None:
    """Look at a checkpoint that the attempt could not use; the node goes on with the one before. May be repeated.

    If storage has the bytes no more, or others, no attempt is offered the checkpoint again, until an attempt commits
    it anew: its bytes are asked for as if they had never been there. If it has them, the checkpoint stands for
    others, and the job's history says who doubted it.

    Raises LeaseLost when the attempt has ended, NotFound when the job has no checkpoint of that step, and
    Unavailable when the server cannot look just now.
    """
    project_id, attempt, doubted = _doubted(ctx, attempt_id, step)
    if doubted.rejected or doubted.doubted_by == attempt.number:
        return
    look = look_at_bytes(ctx, project_id, doubted.blob.sha256)
    now_ms = ctx.clock.now_ms()
    with ctx.store.begin() as tx:
        job, attempt = live_at_job(tx, attempt_id)
        checkpoint = tx.checkpoints.get(job.id, step)
        if checkpoint is None:
            raise NotFound(f"the job has no checkpoint of step {step}")
        if checkpoint.rejected or checkpoint.doubted_by == attempt.number:
            return
        if checkpoint.blob.sha256 != look.sha256 or not note_look(tx, project_id, look, at_ms=now_ms):
            raise Unavailable("the bytes were replaced while the server verified them; try again")
        if look.good:
            _doubt(tx, job, attempt, checkpoint, look, message=message, at_ms=now_ms)
        else:
            _reject(tx, job, attempt, checkpoint, look, message=message, at_ms=now_ms)


def _doubted(ctx: Context, attempt_id: str, step: int) -> tuple[str, AttemptRow, CheckpointRow]:
    with ctx.store.read() as tx:
        attempt = tx.attempts.get(attempt_id)
        job = tx.jobs.get(attempt.job_id) if attempt else None
        checkpoint = tx.checkpoints.get(job.id, step) if job else None
    if job is None or attempt is None:
        raise LeaseLost(f"there is no attempt {attempt_id}")
    refuse_ended(job, attempt)
    if checkpoint is None:
        raise NotFound(f"the job has no checkpoint of step {step}")
    return job.project_id, attempt, checkpoint


def _reject(
    tx: Transaction,
    job: JobRow,
    attempt: AttemptRow,
    checkpoint: CheckpointRow,
    look: FoundBytes,
    *,
    message: str,
    at_ms: int,
) -> None:
    tx.checkpoints.reject(job.id, checkpoint.step)
    tx.jobs.update(job.id, committed_step=max((row.step for row in tx.checkpoints.usable(job.id)), default=0))
    _begin_lower(tx, job, attempt)
    data = {"step": checkpoint.step, "message": message, "found": look.found}
    tx.events.add(job.id, job.project_id, EventType.CHECKPOINT_REJECTED, attempt.number, data, at_ms)


def _doubt(
    tx: Transaction,
    job: JobRow,
    attempt: AttemptRow,
    checkpoint: CheckpointRow,
    look: FoundBytes,
    *,
    message: str,
    at_ms: int,
) -> None:
    if checkpoint.attempt_number == attempt.number:
        return  # it wrote this one itself and does not go back to it: a late repeat
    tx.checkpoints.doubt(job.id, checkpoint.step, attempt_number=attempt.number)
    _begin_lower(tx, job, attempt)
    data = {"name": "checkpoint-doubted", "step": checkpoint.step, "message": message, "found": look.found}
    tx.events.add(job.id, job.project_id, EventType.NOTICE, attempt.number, data, at_ms)


def _begin_lower(tx: Transaction, job: JobRow, attempt: AttemptRow) -> None:
    """Lower the attempt's start step to where it can really begin: its progress is counted from there."""
    rows = [row for row in tx.checkpoints.usable(job.id) if row.doubted_by != attempt.number]
    best = max((row.step for row in rows), default=0)
    lowered = min(attempt.start_step, best), min(attempt.committed_step, best)
    if tx.attempts.update_live(attempt.id, start_step=lowered[0], committed_step=lowered[1]) is None:
        raise LeaseLost(f"attempt {attempt.id} has ended")
