"""Read the metrics of a job as a curve: few points of however many there are."""

from giornata.control.access.permissions import require_scope
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.jobs.reading.job_outputs import metric_point
from giornata.control.jobs.reading.read_jobs import own_job
from giornata.control.pages import check_after
from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.jobs.curve import curve_steps
from giornata.protocol.jobs import MetricPage
from giornata.protocol.project.admin import Scope

LEAST_POINTS, MOST_POINTS = 10, 2000


def read_curve(ctx: Context, caller: Caller, job_id: str, *, after_step: int, points: int) -> MetricPage:
    """Return at most `points` points of steps above `after_step` (-1 for all), ascending, the last one among them.

    `every` of the reply says which steps they are of, by and large: where no values are at such a step, the next
    later ones. Where the bytes are too many, the earliest points are missing.

    Raises Forbidden, NotFound, InvalidInput.
    """
    require_scope(caller, Scope.JOBS_READ)
    check_after(after_step, where="after_step")
    if not LEAST_POINTS <= points <= MOST_POINTS:
        message = f"{points} is not between {LEAST_POINTS} and {MOST_POINTS}"
        raise InvalidInput([Fault(where="points", message=message)])
    with ctx.store.read() as tx:
        job = own_job(tx, caller, job_id)
        span = tx.job_reads.metric_span(job_id, after_step=after_step)
        if span is None:
            return MetricPage(items=())
        held_out = job.spec.get("validate_every_n_steps") if job.spec.get("validation_split") else None
        wanted = curve_steps(*span, points, rare_every=held_out)
        rows = tx.job_reads.curve(job_id, steps=wanted.steps, most_bytes=ctx.policy.max_page_bytes)
    return MetricPage(items=tuple(metric_point(row) for row in rows), every=wanted.every)
