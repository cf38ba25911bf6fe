"""What a node says along the way: log lines, metrics, notices. Fenced like everything that it writes."""

import json
from collections.abc import Mapping
from typing import Any

from giornata.control.context import Context
from giornata.control.fence import live
from giornata.control.metric_room import room_for
from giornata.protocol.events import EventType
from giornata.protocol.work import LogLines, MetricBatch, NoticeReport

LONGEST_LINE = 16_384


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

    They come oftener than heartbeats, so the job's progress follows them. What is over the job's bounds is left out.
    """
    now_ms = ctx.clock.now_ms()
    with ctx.store.begin() as tx:
        job, attempt = live(tx, attempt_id)
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
