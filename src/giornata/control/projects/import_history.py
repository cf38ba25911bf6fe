"""Take in the history of an imported job: metrics, log lines, attempts and events. Its last page ends the import."""

from collections.abc import Iterable
from datetime import timedelta

from giornata.control.access.permissions import require_admin
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.import_store import EventToImport, LineToImport, MetricToImport
from giornata.control.ports.user_queries.records import AttemptRecord
from giornata.control.projects.import_job import (
    IMPORTING,
    imported_job,
    instant_fault,
    ms_of,
    tell_of_import,
)
from giornata.control.text_limits import text_faults
from giornata.control.timestamps import instant
from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.generation.picture import ORDER_KINDS
from giornata.protocol.events import EventType
from giornata.protocol.project.project_transfer import ImportedAttempt, ImportedEvent, ImportedHistory, ImportHistory


def import_history(ctx: Context, caller: Caller, job_id: str, request: ImportHistory) -> ImportedHistory:
    """Insert metrics, lines, attempts and events of an imported job; those that are there already stay.

    Attempts and events are taken while the import goes on, which the page that `is_last` ends with the event
    `job.imported`. Raises Forbidden unless the caller owns the project, NotFound, Conflict for a job that was not
    imported, and InvalidInput.
    """
    require_admin(caller)
    now_ms = ctx.clock.now_ms()
    with ctx.store.begin() as tx:
        tx.submission.hold_project(caller.project_id)  # two equal requests write one history
        job = imported_job(tx, caller, job_id)
        faults = list(_faults(ctx, tx, job_id, request))
        if request.attempts and job.kind in ORDER_KINDS:
            faults.append(Fault(where="attempts", message="an order of pictures has no attempts"))
        if faults:
            raise InvalidInput(faults)
        metrics = [
            MetricToImport(step=each.step, attempt_number=each.attempt, at_ms=ms_of(each.at), values=each.values)
            for each in request.metrics
        ]
        lines = [
            LineToImport(number=each.number, attempt_number=each.attempt, at_ms=ms_of(each.at), line=each.line)
            for each in request.lines
        ]
        tx.imported_jobs.add_history(job_id, metrics=metrics, lines=lines)
        if job.phase == IMPORTING:
            tx.imported_jobs.add_attempts([_attempt(job_id, each) for each in request.attempts])
            tx.imported_jobs.add_events(job, [_event(each) for each in request.events])
            if request.is_last:
                tx.jobs.update(job_id, phase="")
                tell_of_import(tx, job, at_ms=now_ms)
    return ImportedHistory(job_id=job_id, at=instant(now_ms))


def _event(each: ImportedEvent) -> EventToImport:
    return EventToImport(
        number=each.number, type=each.type, attempt_number=each.attempt, data=each.data, at_ms=ms_of(each.at)
    )


def _attempt(job_id: str, each: ImportedAttempt) -> AttemptRecord:
    same = ("number", "id", "node_id", "machine_id", "node_name", "lapsed", "message", "phase")
    steps = ("start_step", "last_step", "committed_step")
    ended_at_ms = ms_of(each.ended_at)
    return AttemptRecord(
        job_id=job_id,
        started_at_ms=ms_of(each.started_at),
        first_step_at_ms=None if each.first_step_at is None else ms_of(each.first_step_at),
        renewed_at_ms=ended_at_ms,
        lease_expires_at_ms=ms_of(each.lease_expires_at),
        ended_at_ms=ended_at_ms,
        reason=each.reason,
        billed_ms=round(each.billed_s * 1000),
        amount_micro_usd=each.cost_micro_usd,
        **{name: getattr(each, name) for name in (*same, *steps)},
    )


def _faults(ctx: Context, tx: Transaction, job_id: str, request: ImportHistory) -> Iterable[Fault]:
    most_lines, most_steps = ctx.policy.max_log_lines_per_job, 2 * ctx.policy.max_metric_steps_per_job
    if any(each.number >= most_lines for each in request.lines):
        yield Fault(where="lines", message=f"a job keeps {most_lines} lines", hint="leave later lines out")
    # A full history that is sent once more is no fault.
    if request.metrics and tx.reports.count_metrics(job_id, from_step=0, up_to=most_steps + 1) > most_steps:
        yield Fault(where="metrics", message=f"a job keeps the metrics of {most_steps} steps")
    for number, each in enumerate(request.events):
        if each.type is EventType.JOB_IMPORTED:
            hint = "leave it out: the end of the import makes it"
            yield Fault(
                where=f"events.{number}.type", message="cannot be imported: it is not part of a history", hint=hint
            )
    for number, attempt in enumerate(request.attempts):
        yield from _attempt_faults(ctx, f"attempts.{number}", attempt)
    instants = {f"metrics.{number}.at": each.at for number, each in enumerate(request.metrics)}
    instants |= {f"lines.{number}.at": each.at for number, each in enumerate(request.lines)}
    instants |= {f"events.{number}.at": each.at for number, each in enumerate(request.events)}
    for where, at in instants.items():
        yield from instant_fault(ctx, where, at, what="of a job")


def _attempt_faults(ctx: Context, where: str, each: ImportedAttempt) -> Iterable[Fault]:
    for name in ("id", "node_id", "machine_id", "node_name", "message", "phase"):
        yield from text_faults(f"{where}.{name}", getattr(each, name))
    first_step_at = each.first_step_at or each.started_at
    if not each.started_at <= first_step_at <= each.ended_at:
        yield Fault(where=f"{where}.ended_at", message="an attempt starts, makes a step and ends in this order")
    for name in ("started_at", "ended_at"):
        yield from instant_fault(ctx, f"{where}.{name}", getattr(each, name), what="of an attempt")
    # A lease runs for a while after its attempt ended.
    yield from instant_fault(
        ctx, f"{where}.lease_expires_at", each.lease_expires_at - timedelta(days=1), what="of a lease"
    )
