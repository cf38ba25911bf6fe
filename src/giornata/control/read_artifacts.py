"""The results of a job."""

from giornata.control.context import Caller, Context
from giornata.control.instants import instant
from giornata.control.permissions import require_user
from giornata.control.read_jobs import require_job
from giornata.control.signed_urls import signed_get
from giornata.protocol.jobs import Artifact, ArtifactPage
from giornata.protocol.model import sendable_media_type


def read_artifacts(ctx: Context, caller: Caller, job_id: str) -> ArtifactPage:
    """Committed results with where to get them, by name. Raises Forbidden, NotFound."""
    require_user(caller)
    with ctx.store.read() as tx:
        require_job(tx, caller, job_id)
        rows = tx.job_reads.artifacts(job_id, project_id=caller.project_id)
    return ArtifactPage(
        items=tuple(
            Artifact(
                name=row.name,
                sha256=row.sha256,
                size_bytes=row.size_bytes,
                media_type=sendable_media_type(row.media_type),
                created_at=instant(row.created_at_ms),
                request=signed_get(ctx, row.key, filename=row.name, media_type=sendable_media_type(row.media_type)),
            )
            for row in rows
        )
    )
