"""A result comes into being. Users see it when the job has succeeded or failed; `complete` asks that it is here."""

from giornata.control.context import Context
from giornata.control.fence import glimpse, live
from giornata.control.ports.work_rows import ArtifactRow
from giornata.control.verify_upload import verify_upload
from giornata.domain.errors import BlobMissing
from giornata.protocol.events import EventType
from giornata.protocol.work import CommitArtifact, Committed


def commit_artifact(ctx: Context, attempt_id: str, commit: CommitArtifact) -> Committed:
    """Verify the bytes, then record them under the artifact's name. Repeating it changes nothing.

    The same name with other bytes replaces what stood there; with the same bytes, another attempt vouches for them
    from now on. Raises LeaseLost, BlobMissing and BlobMismatch.
    """
    project_id = glimpse(ctx, attempt_id)
    verify_upload(ctx, project_id, commit.sha256, commit.size_bytes, commit.upload_id, commit.etags)
    now_ms = ctx.clock.now_ms()
    with ctx.store.begin() as tx:
        job, attempt = live(tx, attempt_id)
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
            data = {"name": commit.name, "size_bytes": commit.size_bytes, "sha256": commit.sha256}
            tx.events.add(job.id, job.project_id, EventType.ARTIFACT_COMMITTED, attempt.number, data, now_ms)
        return Committed(sha256=commit.sha256, size_bytes=commit.size_bytes, superfluous=superfluous)
