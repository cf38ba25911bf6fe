"""How much a job may measure: so many names, and so many steps. What is over is left out, and nothing fails."""

from collections.abc import Mapping

from giornata.control.context import Context
from giornata.control.memory import MetricNames
from giornata.control.policy import Policy
from giornata.control.ports.store import Transaction
from giornata.control.ports.work_rows import AttemptRow, JobRow

Points = Mapping[int, Mapping[str, float]]

NAMES_FULL, STEPS_FULL = "metric-names-full", "metrics-full"
SEEDED_FROM = 200
"""Points that tell which names a job had before this process heard of it."""


def room_for(
    tx: Transaction, ctx: Context, job: JobRow, attempt: AttemptRow, points: Points, *, at_ms: int
) -> Points:
    """What is kept of the points. The job's events say once for each bound that something was left out."""
    known = ctx.memory.metric_names(job.id)
    if not known.complete:
        known.names |= tx.reports.metric_names(job.id, points=SEEDED_FROM)
        known.complete = True
    named = {step: within_names(ctx.policy, known, values) for step, values in points.items()}
    if any(len(named[step]) < len(points[step]) for step in points):
        most, longest = ctx.policy.max_metric_names_per_job, ctx.policy.max_metric_name_length
        message = f"a job has at most {most} names of metrics, of at most {longest} characters; others are not kept"
        _say_once(tx, job, attempt, NAMES_FULL, message, at_ms=at_ms)
    kept = _within_steps(tx, ctx.policy, job, named)
    if len(kept) < len(named):
        most = 2 * ctx.policy.max_metric_steps_per_job
        message = f"a job has metrics of at most {most} steps; those of later steps are not kept"
        _say_once(tx, job, attempt, STEPS_FULL, message, at_ms=at_ms)
    return kept


def room_for_beat(ctx: Context, job_id: str, step: int, values: Mapping[str, float]) -> Mapping[str, float]:
    """What is kept of the metrics of a heartbeat. Asks no database: only steps whose number is small are kept."""
    if step >= ctx.policy.max_metric_steps_per_job:
        return {}
    return within_names(ctx.policy, ctx.memory.metric_names(job_id), values)


def within_names(policy: Policy, known: MetricNames, values: Mapping[str, float]) -> Mapping[str, float]:
    """The values under names that the job has already, or has room for."""
    if values.keys() <= known.names:
        return values
    for name in values:
        if len(known.names) < policy.max_metric_names_per_job and len(name) <= policy.max_metric_name_length:
            known.names.add(name)
    return {name: value for name, value in values.items() if name in known.names}


def _within_steps(tx: Transaction, policy: Policy, job: JobRow, points: Points) -> Points:
    """Rows have different steps, so those below a bound are few by themselves; those above it are counted."""
    most = policy.max_metric_steps_per_job
    above = sorted(step for step in points if step >= most)
    if not above:
        return points
    room = most - tx.reports.count_metrics(job.id, from_step=most, up_to=most)
    left_out = set(above[max(0, room) :])
    return {step: values for step, values in points.items() if step not in left_out}


def _say_once(tx: Transaction, job: JobRow, attempt: AttemptRow, name: str, message: str, *, at_ms: int) -> None:
    if not tx.events.has_notice(job.id, name):
        tx.events.add_notice(job, attempt, {"name": name, "message": message}, notice_id=name, at_ms=at_ms)
