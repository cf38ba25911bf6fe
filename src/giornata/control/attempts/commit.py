"""Commit checkpoints and artifacts, which begin to exist here alone: an upload without a commit does not exist."""

from collections.abc import Mapping, Sequence
from typing import Any

from giornata.control.attempts.auditing.draw_audit import draw_audit
from giornata.control.attempts.validations import (
    cancel_drawn,
    join_to_training,
    order_validation,
    tell_of_samples,
)
from giornata.control.context import Context
from giornata.control.ports.node_queries.work_rows import ArtifactRow, AttemptRow, BlobRow, CheckpointRow, JobRow
from giornata.control.ports.store import Transaction
from giornata.control.storage.fence import live_at_job, project_of_live_attempt
from giornata.control.storage.verify_upload import verify_upload
from giornata.domain.errors import BlobMissing, Conflict, LeaseLost
from giornata.protocol.events import EventType
from giornata.protocol.node.work import CommitArtifact, CommitCheckpoint, Committed

KEEP_LATEST = 2


def commit_checkpoint(ctx: Context, attempt_id: str, commit: CommitCheckpoint) -> Committed:
    """Verify the bytes, then make the checkpoint exist. Repeating it changes nothing, however late the repeat comes.

    A checkpoint that was rejected for its bytes is usable again once they are there again.
    Raises LeaseLost when the attempt has ended, BlobMissing and BlobMismatch when the bytes are not there or are
    others, and Conflict when this very attempt has committed other bytes for the step.
    """
    project_id = project_of_live_attempt(ctx, attempt_id)
    verify_upload(ctx, project_id, commit.sha256, commit.size_bytes, commit.upload_id, commit.etags)
    now_ms = ctx.clock.now_ms()
    with ctx.store.begin() as tx:
        job, attempt = live_at_job(tx, attempt_id)
        if not tx.uploads.touch_blobs(project_id, [commit.sha256], at_ms=now_ms):
            raise BlobMissing(f"the bytes with sha256 {commit.sha256} were collected meanwhile; upload them again")
        rows = tx.checkpoints.all(job.id)
        standing = next((row for row in rows if row.step == commit.step), None)
        old = to_prune(_with(rows, attempt, commit), job.spec)
        if standing is not None and standing.blob.sha256 == commit.sha256 and not standing.rejected:
            return Committed(sha256=commit.sha256, size_bytes=commit.size_bytes, superfluous=True)
        if standing is not None and not standing.rejected:
            _note_difference(tx, job, attempt, standing, commit, at_ms=now_ms)
        elif commit.step in old:
            # It would go at once: later ones are in, and it may well have been here before them.
            return Committed(sha256=commit.sha256, size_bytes=commit.size_bytes, superfluous=True)
        _accept(tx, ctx, job, attempt, commit, at_ms=now_ms)
        draw_audit(tx, ctx, job, attempt, commit, earlier=rows, at_ms=now_ms)
        # The new one is in: only now may older ones go, in this very transaction.
        if old:
            tx.checkpoints.delete(job.id, old)
        return Committed(sha256=commit.sha256, size_bytes=commit.size_bytes)


def to_prune(rows: Sequence[CheckpointRow], spec: Mapping[str, Any]) -> list[int]:
    """Return the steps that need not be kept: all but the latest K, those that N divides, and those that are pinned.
    Never the highest usable one.

    A rejected one goes when it lies below all that are kept.
    """
    latest, every = spec.get("checkpoints_keep_latest"), spec.get("checkpoints_keep_every")
    usable = sorted((row.step for row in rows if not row.rejected), reverse=True)
    kept = set(usable[: latest if isinstance(latest, int) and latest > 0 else KEEP_LATEST])
    if isinstance(every, int) and every > 0:
        kept |= {step for step in usable if step % every == 0}
    lowest_kept = min(kept, default=0)
    spare = [row for row in rows if row.step not in kept and not row.pinned]
    return [row.step for row in spare if not row.rejected or row.step < lowest_kept]


def _with(rows: Sequence[CheckpointRow], attempt: AttemptRow, commit: CommitCheckpoint) -> list[CheckpointRow]:
    """Return the job's checkpoints as they will be when this one is in."""
    blob = BlobRow(sha256=commit.sha256, size_bytes=commit.size_bytes, key="")
    pinned = any(row.pinned for row in rows if row.step == commit.step)
    this = CheckpointRow(step=commit.step, attempt_number=attempt.number, rejected=False, blob=blob, pinned=pinned)
    return [this, *(row for row in rows if row.step != commit.step)]


def _note_difference(
    tx: Transaction,
    job: JobRow,
    attempt: AttemptRow,
    standing: CheckpointRow,
    commit: CommitCheckpoint,
    *,
    at_ms: int,
) -> None:
    """Note in the job's history that a resume did not make equal bytes; the later attempt's bytes count.

    Raises Conflict when the bytes that stand are not of an earlier attempt.
    """
    if standing.attempt_number >= attempt.number:
        raise Conflict(f"step {commit.step} was committed with other bytes (sha256 {standing.blob.sha256}) before")
    data = {
        "name": "checkpoint-bytes-differ",
        "step": commit.step,
        "sha256": commit.sha256,
        "earlier_sha256": standing.blob.sha256,
        "earlier_attempt": standing.attempt_number,
    }
    tx.events.add(job.id, job.project_id, EventType.NOTICE, attempt.number, data, at_ms)


def _accept(
    tx: Transaction, ctx: Context, job: JobRow, attempt: AttemptRow, commit: CommitCheckpoint, *, at_ms: int
) -> None:
    tx.checkpoints.put(
        job,
        step=commit.step,
        sha256=commit.sha256,
        size_bytes=commit.size_bytes,
        attempt_number=attempt.number,
        at_ms=at_ms,
    )
    data: dict[str, Any] = {"step": commit.step, "size_bytes": commit.size_bytes, "sha256": commit.sha256}
    if (validation := order_validation(tx, ctx, job, commit, at_ms=at_ms)) is not None:
        data["validation"] = validation
    tx.events.add(job.id, job.project_id, EventType.CHECKPOINT_COMMITTED, attempt.number, data, at_ms)
    highest = max(attempt.committed_step, commit.step)
    if tx.attempts.update_live(attempt.id, committed_step=highest, last_step=max(attempt.last_step, highest)) is None:
        raise LeaseLost(f"attempt {attempt.id} has ended")
    fruit = {"fruitless": 0} if commit.step > attempt.start_step else {}
    safe = max(job.committed_step, commit.step)
    # Commits may come before the beat that tells of their step.
    tx.jobs.update(job.id, committed_step=safe, step=max(job.step, safe), **fruit)


def commit_artifact(ctx: Context, attempt_id: str, commit: CommitArtifact) -> Committed:
    """Verify the bytes, then record them under the artifact's name. Repeating it changes nothing.

    The same name with other bytes replaces what stood there; with the same bytes, another attempt vouches for them
    from now on. Raises LeaseLost, BlobMissing and BlobMismatch.
    """
    project_id = project_of_live_attempt(ctx, attempt_id)
    verify_upload(ctx, project_id, commit.sha256, commit.size_bytes, commit.upload_id, commit.etags)
    now_ms = ctx.clock.now_ms()
    with ctx.store.begin() as tx:
        job, attempt = live_at_job(tx, attempt_id)
        if not tx.uploads.touch_blobs(project_id, [commit.sha256], at_ms=now_ms):
            raise BlobMissing(f"the bytes with sha256 {commit.sha256} were collected meanwhile; upload them again")
        standing = {row.name: row for row in tx.artifacts.of_job(job.id)}.get(commit.name)
        superfluous = standing is not None and standing.sha256 == commit.sha256
        if standing is None or not superfluous or standing.attempt_id != attempt.id:
            # The row names the attempt that vouched for it last: that is whom `complete` asks, and what it drops
            # otherwise. So the history has every one of them, also when the bytes are the same.
            row = ArtifactRow(
                name=commit.name, attempt_id=attempt.id, sha256=commit.sha256, size_bytes=commit.size_bytes
            )
            tx.artifacts.put(job, row, media_type=commit.media_type, at_ms=now_ms)
            join_to_training(tx, job, row, media_type=commit.media_type, at_ms=now_ms)
            cancel_drawn(tx, ctx, job, row, at_ms=now_ms)
            data = {"name": commit.name, "size_bytes": commit.size_bytes, "sha256": commit.sha256}
            tx.events.add(job.id, job.project_id, EventType.ARTIFACT_COMMITTED, attempt.number, data, now_ms)
            if not superfluous:
                tell_of_samples(tx, job, attempt, row, at_ms=now_ms)
        return Committed(sha256=commit.sha256, size_bytes=commit.size_bytes, superfluous=superfluous)
