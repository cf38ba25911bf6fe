"""Read why the queue waits, as an operator sees it: by its oldest job."""

from dataclasses import dataclass
from datetime import datetime

from giornata.control.access.machine_names import machine_names
from giornata.control.access.permissions import require_root_admin
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.jobs.reading.read_jobs import why_it_waits
from giornata.control.ports.node_queries.gauges import Gauges
from giornata.control.timestamps import instant


@dataclass(frozen=True, slots=True, kw_only=True)
class OldestWaiting:
    """The job, of all projects, that has waited for the longest time, and why no node has it."""

    job_id: str
    project_id: str
    name: str
    kind: str
    submitted_at: datetime
    waiting_because: str


def read_oldest_waiting(ctx: Context, caller: Caller, gauges: Gauges) -> OldestWaiting | None:
    """Return the oldest job of the queue to an operator; None where there is none, or where it has just begun.

    Raises Forbidden, Unavailable.
    """
    require_root_admin(caller)
    if gauges.oldest_queued is None:
        return None
    job_id, project_id = gauges.oldest_queued
    with ctx.store.read() as tx:
        job = tx.job_reads.get(job_id, project_id=project_id)
        if job is None:
            return None
        because, _ = why_it_waits(ctx, tx, job, names=machine_names(tx, ctx, caller))
    if because is None:  # the gauges are of some seconds ago
        return None
    return OldestWaiting(
        job_id=job_id,
        project_id=project_id,
        name=job.name,
        kind=job.kind,
        submitted_at=instant(job.created_at_ms),
        waiting_because=because,
    )
