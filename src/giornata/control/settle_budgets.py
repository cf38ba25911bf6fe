"""Queued jobs of projects whose money is used up wait outside the queue, and come back when there is some again.

There is some again when a budget is raised, and for a budget per month when the next month begins.
"""

from collections.abc import Callable, Sequence

from giornata.control.budgets import project_spent, told
from giornata.control.context import Context
from giornata.control.ports.money_store import Parked
from giornata.control.ports.store import Transaction
from giornata.control.ports.work_rows import NewEvent
from giornata.domain.budget import Budget, ProjectLimits, first_used_up, project_budgets
from giornata.protocol.events import EventType

# Jobs in one transaction: a long one would hold up the heartbeats.
AT_ONCE = 500


def settle_budgets(ctx: Context) -> int:
    """Pause and resume the queued jobs of every project by its budget; how many. A loop calls it again and again.

    A job that a node takes before its turn here is stopped at its first heartbeat.
    """
    now_ms = ctx.clock.now_ms()
    with ctx.store.read() as tx:
        limits = tx.pausing.limited_projects()
        waiting = tx.pausing.projects_waiting()
        stops = {project_id: _stop(tx, ctx, project_id, each, at_ms=now_ms) for project_id, each in limits}
    empty = {project_id: budget for project_id, budget in stops.items() if budget is not None}
    moved = sum(_pause(ctx, project_id, budget) for project_id, budget in empty.items())
    return moved + sum(_resume(ctx, project_id) for project_id in waiting if project_id not in empty)


def _stop(tx: Transaction, ctx: Context, project_id: str, limits: ProjectLimits, *, at_ms: int) -> Budget | None:
    spent = project_spent(tx, ctx, project_id, at_ms=at_ms)
    return first_used_up(tuple(project_budgets(limits, spent, at_ms=at_ms)))


def _pause(ctx: Context, project_id: str, budget: Budget) -> int:
    def some(tx: Transaction) -> list[NewEvent]:
        jobs = tx.pausing.pause_queued(project_id, payer=budget.payer, limit=AT_ONCE)
        return _events(ctx, project_id, EventType.JOB_PAUSED, jobs, lambda _: told(budget))

    return _until_done(ctx, some)


def _resume(ctx: Context, project_id: str) -> int:
    def some(tx: Transaction) -> list[NewEvent]:
        jobs = tx.pausing.resume_paused(project_id, limit=AT_ONCE)
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
    jobs: Sequence[Parked],
    data: Callable[[Parked], dict[str, object]],
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
