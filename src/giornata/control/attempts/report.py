"""Record a working node's reports: log lines, metrics and notices. Each report is fenced and bounded."""

import json
from collections.abc import Mapping
from typing import Any

from giornata.control.context import Context
from giornata.control.memory.process_cache import MetricNames
from giornata.control.policy import Policy
from giornata.control.ports.node_queries.work_rows import AttemptRow, JobRow
from giornata.control.ports.store import Transaction
from giornata.control.storage.fence import live, live_at_job
from giornata.protocol.events import EventType
from giornata.protocol.node.work import LogLines, MetricBatch, NoticeReport

LONGEST_LINE = 16_384
Points = Mapping[int, Mapping[str, float]]
NAMES_FULL, STEPS_FULL = "metric-names-full", "metrics-full"
SEEDED_FROM = 200
"""Points that tell which names a job had before this process heard of it."""


def add_log_lines(ctx: Context, attempt_id: str, report: LogLines) -> None:
    """Append lines; a line whose number is there already is left alone. Raises LeaseLost.

    A job keeps `policy.max_log_lines_per_job` lines; the rest are dropped, and one notice says so. A line is cut
    at LONGEST_LINE characters.
    """
    now_ms = ctx.clock.now_ms()
    most = ctx.policy.max_log_lines_per_job
    with ctx.store.begin() as tx:
        job, attempt = live(tx, attempt_id)
        room = most - tx.reports.count_lines(job.id, up_to=most)
        if room <= 0:
            return
        lines = [line[:LONGEST_LINE] for line in report.lines[:room]]
        tx.reports.add_lines(attempt, first=report.first, lines=lines, at_ms=now_ms)
        if tx.reports.count_lines(job.id, up_to=most) >= most:
            data = {"name": "log-full", "lines": most, "message": "the rest of the log is not kept"}
            tx.events.add(job.id, job.project_id, EventType.NOTICE, attempt.number, data, now_ms)


def put_metrics(ctx: Context, attempt_id: str, batch: MetricBatch) -> None:
    """Record metrics by step. A step done again by a later attempt shows its values. Raises LeaseLost.

    They come oftener than heartbeats, so the job's progress follows them. Points over the job's bounds are left out.
    """
    now_ms = ctx.clock.now_ms()
    with ctx.store.begin() as tx:
        job, attempt = live_at_job(tx, attempt_id)
        points = {point.step: point.values for point in batch.points}  # of two for one step the later counts
        kept = room_for(tx, ctx, job, attempt, points, at_ms=now_ms)
        tx.reports.put_metrics([(attempt, step, values) for step, values in kept.items()], at_ms=now_ms)
        reached = max(attempt.last_step, *(point.step for point in batch.points))
        told = max(point.step for point in batch.points)
        further = told > (attempt.start_step if attempt.stepped_to is None else attempt.stepped_to)
        stepped = {"stepped_to": told, "stepped_at_ms": now_ms} if further else {}
        tx.attempts.update_live(attempt.id, last_step=reached, **stepped)
        tx.jobs.update(job.id, step=reached)


def add_notice(ctx: Context, attempt_id: str, report: NoticeReport) -> None:
    """Put something into the job's history, once for each `notice_id`. Raises LeaseLost.

    A job keeps `policy.max_notices_per_job` notices; the rest are dropped, and one more says so. Of a notice whose
    data is over `policy.max_notice_bytes` only the name is kept, with the size of what was left out.
    """
    now_ms = ctx.clock.now_ms()
    most = ctx.policy.max_notices_per_job
    with ctx.store.begin() as tx:
        job, attempt = live(tx, attempt_id)
        if tx.events.count_notices(job.id, up_to=most) >= most:
            return
        tx.events.add_notice(job, attempt, _data(ctx, report), notice_id=report.notice_id, at_ms=now_ms)
        if tx.events.count_notices(job.id, up_to=most) >= most:
            full = {"name": "notices-full", "notices": most, "message": "the rest of the notices are not kept"}
            tx.events.add(job.id, job.project_id, EventType.NOTICE, attempt.number, full, now_ms)


def _data(ctx: Context, report: NoticeReport) -> Mapping[str, Any]:
    size_bytes, most = len(json.dumps(report.data, separators=(",", ":"))), ctx.policy.max_notice_bytes
    if size_bytes <= most:
        return {**report.data, "name": report.name}
    return {"name": report.name, "left_out": f"the data has {size_bytes} bytes; at most {most} are kept"}


def room_for(
    tx: Transaction, ctx: Context, job: JobRow, attempt: AttemptRow, points: Points, *, at_ms: int
) -> Points:
    """Return the points that are kept. The job's events say once for each bound that something was left out."""
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
    """Return the metrics of a heartbeat that are kept. Asks no database: only steps with a small number are kept."""
    if step >= ctx.policy.max_metric_steps_per_job:
        return {}
    return within_names(ctx.policy, ctx.memory.metric_names(job_id), values)


def within_names(policy: Policy, known: MetricNames, values: Mapping[str, float]) -> Mapping[str, float]:
    """Return the values under names that the job has already, or has room for."""
    if values.keys() <= known.names:
        return values
    for name in values:
        if len(known.names) < policy.max_metric_names_per_job and len(name) <= policy.max_metric_name_length:
            known.names.add(name)
    return {name: value for name, value in values.items() if name in known.names}


def _within_steps(tx: Transaction, policy: Policy, job: JobRow, points: Points) -> Points:
    """Return the points that the bound on steps leaves. Steps below the bound are few by themselves, since rows have
    different steps; steps above it are counted.
    """
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
