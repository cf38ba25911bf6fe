"""The checkpoints of a job."""

from giornata.control.context import Caller, Context
from giornata.control.instants import instant
from giornata.control.permissions import require_user
from giornata.control.read_jobs import require_job
from giornata.control.signed_urls import signed_get
from giornata.protocol.jobs import Checkpoint, CheckpointPage


def read_checkpoints(ctx: Context, caller: Caller, job_id: str) -> CheckpointPage:
    """Committed checkpoints with where to get them, highest step first; attempt 0 made those that a retry inherited.

    Raises Forbidden, NotFound.
    """
    require_user(caller)
    with ctx.store.read() as tx:
        require_job(tx, caller, job_id)
        rows = tx.job_reads.checkpoints(job_id, project_id=caller.project_id)
    return CheckpointPage(
        items=tuple(
            Checkpoint(
                step=row.step,
                attempt=row.attempt_number,
                sha256=row.sha256,
                size_bytes=row.size_bytes,
                created_at=instant(row.created_at_ms),
                request=signed_get(ctx, row.key, filename=f"{job_id}-step-{row.step}.safetensors"),
            )
            for row in rows
        )
    )
