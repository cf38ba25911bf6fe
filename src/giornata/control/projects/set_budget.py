"""Set, raise, lower and lift budgets; jobs that waited for money go on.

A loop moves queued jobs of a project without money out of the queue. The jobs come back when the budget is raised,
and for a monthly budget when the next month begins.
"""

from collections.abc import Callable, Sequence

from giornata.control.access.permissions import require_any, require_root_admin, require_write
from giornata.control.audit_log.record import record_call
from giornata.control.budgets.budgets import pause_job, project_spent, require_room, resume_job, told, used_up
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.jobs.reading.read_jobs import own_job, read_job
from giornata.control.jobs.settle_sweep import settle_sweep
from giornata.control.ports.node_queries.work_rows import JobRow, NewEvent
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.money_store import PausedJob
from giornata.control.ports.user_queries.records import JobRecord
from giornata.control.projects.projects import read_project
from giornata.control.text_limits import is_id
from giornata.domain.accounts.audit_log import AuditVerb
from giornata.domain.billing.budget import (
    Budget,
    Payer,
    ProjectLimits,
    first_used_up,
    project_budgets,
    reservation_micro_usd,
)
from giornata.domain.errors import IllegalTransition, NotFound
from giornata.domain.generation.picture import ORDER_KINDS
from giornata.domain.jobs.job import TERMINAL, JobState
from giornata.domain.jobs.sweep import SWEEP_KIND
from giornata.protocol.events import EventType
from giornata.protocol.jobs import ChangeJob, Job
from giornata.protocol.project.admin import Project, Scope, SetBudget

# Jobs in one transaction: a long one would hold up the heartbeats.
AT_ONCE = 500


def set_project_budget(ctx: Context, caller: Caller, project_id: str, request: SetBudget) -> Project:
    """Set or lift a project's budgets, in all and per month; one that is not given stays.

    Running jobs of a project without money stop at their next heartbeat. Raises Forbidden unless the caller governs
    the installation, NotFound.
    """
    require_root_admin(caller)
    given = {
        Payer.PROJECT: ("budget_micro_usd", request.budget_micro_usd),
        Payer.MONTH: ("monthly_budget_micro_usd", request.monthly_budget_micro_usd),
    }
    budgets = {payer: value for payer, (field, value) in given.items() if field in request.model_fields_set}
    with ctx.store.begin() as tx:
        if not is_id(project_id) or not tx.pausing.set_budgets(project_id, budgets):
            raise NotFound(f"there is no project {project_id}")
        changes = {field: value for field, value in given.values() if field in request.model_fields_set}
        verb = AuditVerb.PROJECT_BUDGET
        record_call(tx, caller, verb, project_id, at_ms=ctx.clock.now_ms(), project_id=project_id, changes=changes)
    settle_budgets(ctx)
    with ctx.store.read() as tx:
        return read_project(tx, ctx, project_id)


def change_job(ctx: Context, caller: Caller, job_id: str, request: ChangeJob) -> Job:
    """Set or lift a job's budget. Raises Forbidden, NotFound, IllegalTransition for a job that has ended, and
    OverBudget when the project's budget has no room for the new one.

    A job that waited for this money is in the queue when this returns; a running one that has spent more than it may
    is told so at its next heartbeat. One that waits for its sweep's budget goes on waiting for it.
    """
    require_any(caller, Scope.JOBS_WRITE, Scope.GENERATE)
    with ctx.store.begin() as tx:
        old = own_job(tx, caller, job_id)
        require_write(caller, old.kind)
        job = tx.jobs.lock(job_id)
        if job is None:
            raise NotFound(f"there is no job {job_id}")
        if job.state in TERMINAL:
            raise IllegalTransition(f"a job that is {job.state} spends nothing any more: its budget stays as it is")
        _set(tx, ctx, old, request.budget_micro_usd)
        verb, changes = AuditVerb.JOB_CHANGE, {"budget_micro_usd": request.budget_micro_usd}
        record_call(tx, caller, verb, job_id, at_ms=ctx.clock.now_ms(), changes=changes)
        if job.kind == SWEEP_KIND:
            settle_sweep(tx, ctx, job_id, at_ms=ctx.clock.now_ms())
        else:
            _settle(tx, ctx, job_id)
        return read_job(ctx, tx, caller, job_id)


def _set(tx: Transaction, ctx: Context, job: JobRecord, budget: int | None) -> None:
    # The jobs of a sweep set money aside, not the sweep.
    asked = 0 if job.kind == SWEEP_KIND else reservation_micro_usd(budget=budget, estimate=None)
    if asked > job.reserved_micro_usd:
        require_room(tx, ctx, job, asked=asked)
    tx.jobs.update(job.id, budget_micro_usd=budget, reserved_micro_usd=asked, budget_warned_at_ms=None)


def _settle(tx: Transaction, ctx: Context, job_id: str) -> None:
    job, now_ms = tx.jobs.lock(job_id), ctx.clock.now_ms()
    if job is None or job.state is JobState.RUNNING:
        return
    if job.state is JobState.PAUSED and _waits_for_sweep(tx, job):
        return
    stop = used_up(tx, ctx, job, at_ms=now_ms)
    if job.state is JobState.PAUSED:
        if stop is None:
            resume_job(tx, job, at_ms=now_ms)
        else:
            tx.jobs.update(job_id, paused_by=stop.payer)
    elif stop is not None and tx.attempts.live_of_job(job_id) is None:
        pause_job(tx, job, stop, at_ms=now_ms)


def _waits_for_sweep(tx: Transaction, job: JobRow) -> bool:
    """Return True for a paused job that its sweep holds back: only the sweep knows when there is room for it."""
    row = None if job.parent_id is None else tx.job_reads.get(job.id, project_id=job.project_id)
    return row is not None and row.paused_by == Payer.SWEEP


def settle_budgets(ctx: Context) -> int:
    """Pause and resume the queued jobs of every project by its budget; return how many. A loop calls it again and
    again.

    A job that a node takes before its turn here is stopped at its first heartbeat.
    """
    now_ms = ctx.clock.now_ms()
    with ctx.store.read() as tx:
        limits = tx.pausing.limited_projects()
        waiting = tx.pausing.projects_waiting()
        found = {project_id: _budgets(tx, ctx, project_id, each, at_ms=now_ms) for project_id, each in limits}
    budgets = [(project_id, budget) for project_id, of_one in found.items() for budget in of_one]
    ctx.memory.project_budgets = sorted(budgets, key=lambda each: -each[1].share)
    stops = {project_id: first_used_up(of_one) for project_id, of_one in found.items()}
    empty = {project_id: budget for project_id, budget in stops.items() if budget is not None}
    moved = sum(_pause(ctx, project_id, budget) for project_id, budget in empty.items())
    return moved + sum(_resume(ctx, project_id) for project_id in waiting if project_id not in empty)


def _budgets(
    tx: Transaction, ctx: Context, project_id: str, limits: ProjectLimits, *, at_ms: int
) -> tuple[Budget, ...]:
    spent = project_spent(tx, ctx, project_id, at_ms=at_ms)
    return tuple(project_budgets(limits, spent, at_ms=at_ms))


def _pause(ctx: Context, project_id: str, budget: Budget) -> int:
    def some(tx: Transaction) -> list[NewEvent]:
        jobs = tx.pausing.pause_queued(project_id, payer=budget.payer, limit=AT_ONCE)
        tx.picture_orders.pause([job.job_id for job in jobs if job.kind in ORDER_KINDS])
        return _events(ctx, project_id, EventType.JOB_PAUSED, jobs, lambda _: told(budget))

    return _until_done(ctx, some)


def _resume(ctx: Context, project_id: str) -> int:
    def some(tx: Transaction) -> list[NewEvent]:
        jobs = tx.pausing.resume_paused(project_id, limit=AT_ONCE)
        tx.picture_orders.resume([job.job_id for job in jobs if job.kind in ORDER_KINDS])
        return _events(ctx, project_id, EventType.JOB_RESUMED, jobs, lambda job: {"resume_step": job.committed_step})

    return _until_done(ctx, some)


def _until_done(ctx: Context, some: Callable[[Transaction], list[NewEvent]]) -> int:
    moved = 0
    while True:
        with ctx.store.begin() as tx:
            events = some(tx)
            tx.events.add_each(events)
        moved += len(events)
        if len(events) < AT_ONCE:
            return moved


def _events(
    ctx: Context,
    project_id: str,
    event_type: EventType,
    jobs: Sequence[PausedJob],
    data: Callable[[PausedJob], dict[str, object]],
) -> list[NewEvent]:
    at_ms = ctx.clock.now_ms()
    return [
        NewEvent(
            job_id=job.job_id,
            project_id=project_id,
            type=event_type,
            attempt_number=None,
            data=data(job),
            at_ms=at_ms,
        )
        for job in jobs
    ]
