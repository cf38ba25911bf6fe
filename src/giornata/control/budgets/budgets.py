"""Budgets: what is spent of them, what jobs set aside, and the jobs that wait until a budget is raised.

Nothing is asked of the store for jobs and projects without a budget.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from giornata.control.budgets.history import likely_cost_micro_usd
from giornata.control.context import Foundations
from giornata.control.memory.process_cache import Settled
from giornata.control.ports.node_queries.work_rows import JobRow
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.records import JobRecord, ProjectRecord
from giornata.domain.billing.budget import (
    Budget,
    Payer,
    ProjectLimits,
    Spent,
    first_used_up,
    fits,
    month_end_ms,
    month_start_ms,
    project_budgets,
    reservation_micro_usd,
)
from giornata.domain.billing.money import format_usd
from giornata.domain.billing.quotas import QuotaName
from giornata.domain.errors import OverBudget, QuotaFault
from giornata.domain.generation.picture import ORDER_KINDS
from giornata.domain.jobs.job import JobEvent, JobState
from giornata.protocol.events import EventType
from giornata.protocol.specs import CANARY_KIND

# What ended longer ago than this is added up once and remembered; no transaction takes so long.
SETTLES_MS = 600_000
BEGINNING_MS = -(2**62)


def budgets_each(
    tx: Transaction, ctx: Foundations, jobs: Sequence[JobRow], *, at_ms: int
) -> Mapping[str, tuple[Budget, ...]]:
    """Return the budgets of these locked jobs by their ids, the job's own before the project's; none for most."""
    own = {**tx.spending.of_jobs([job.id for job in jobs if job.budget_micro_usd is not None])}
    limited = sorted({job.project_id for job in jobs if limits_of(job)})
    spent = {project_id: project_spent(tx, ctx, project_id, at_ms=at_ms) for project_id in limited}
    if sweeps := {job.parent_id for job in jobs if job.sweep_budget_micro_usd is not None and job.parent_id}:
        own |= tx.sweeps.spent(sorted(sweeps))
    return {job.id: tuple(_budgets(job, own, spent.get(job.project_id, Spent()), at_ms=at_ms)) for job in jobs}


def limits_of(job: JobRow) -> ProjectLimits:
    """Return the limits of a locked job's project."""
    return ProjectLimits(
        total_micro_usd=job.project_budget_micro_usd, monthly_micro_usd=job.project_monthly_budget_micro_usd
    )


def used_up(tx: Transaction, ctx: Foundations, job: JobRow, *, at_ms: int) -> Budget | None:
    """Return the budget that stops this locked job now; None when it may go on."""
    return first_used_up(budgets_each(tx, ctx, [job], at_ms=at_ms)[job.id])


def project_spent(tx: Transaction, ctx: Foundations, project_id: str | None, *, at_ms: int) -> Spent:
    """Return the spending of all attempts of the project, or of all projects, ever and in this month.

    After the first time only new attempts are read, until an audit moves bills to another project. What it moved on
    another server is seen after REFUTATIONS_MS.
    """
    before_ms, month_ms = at_ms - SETTLES_MS, month_start_ms(at_ms)
    known = _settled(ctx, project_id, refutations=_refutations(tx, ctx, at_ms=at_ms), at_ms=at_ms, month_ms=month_ms)
    if known.before_ms + SETTLES_MS <= before_ms:
        more = tx.spending.settled(project_id, from_ms=known.before_ms, before_ms=before_ms, month_ms=month_ms)
        known = replace(known, before_ms=before_ms, spent=known.spent + more)
        ctx.memory.remember_settled(project_id, known)
    return known.spent + tx.spending.unsettled(project_id, since_ms=known.before_ms, month_ms=month_ms)


def _refutations(tx: Transaction, ctx: Foundations, *, at_ms: int) -> tuple[int, int]:
    """Return the number and the latest of the audits that moved bills, as of a moment ago."""
    known = ctx.memory.refutations(at_ms=at_ms)
    if known is None:
        known = tx.audits.refutations()
        ctx.memory.remember_refutations(known, at_ms=at_ms)
    return known


def _settled(
    ctx: Foundations, project_id: str | None, *, refutations: tuple[int, int], at_ms: int, month_ms: int
) -> Settled:
    """Return the remembered sum, as far as it holds for this month and after these refutations."""
    nothing = Settled(before_ms=BEGINNING_MS, month_ms=month_ms, spent=Spent(), refutations=refutations)
    known = ctx.memory.settled(project_id)
    if known is not None and known.refutations != refutations:
        return nothing
    if known is not None and known.month_ms < month_ms and known.before_ms <= month_ms:
        # All of it had ended before the month began.
        return replace(known, month_ms=month_ms, spent=replace(known.spent, month_micro_usd=0))
    # The clock was set back, or the sums are of another month.
    if known is None or known.before_ms > at_ms or known.month_ms != month_ms:
        return nothing
    return known


def told(budget: Budget) -> dict[str, Any]:
    """Return the data of an event about this budget. A budget per month is the project's too."""
    data = {
        "budget": Payer.PROJECT if budget.payer is Payer.MONTH else budget.payer,
        "limit_micro_usd": budget.limit_micro_usd,
        "spent_micro_usd": budget.spent_micro_usd,
    }
    return data if budget.month is None else {**data, "month": budget.month}


def _budgets(job: JobRow, own: Mapping[str, int], spent: Spent, *, at_ms: int) -> list[Budget]:
    """Return the budgets of one job. `own`: what jobs and sweeps with a budget have spent, by their ids."""
    found: list[Budget] = []
    if job.kind == CANARY_KIND or job.billed_to is not None:  # the platform's own affair
        return found
    if job.budget_micro_usd is not None:
        spent_of_it = own.get(job.id, 0)
        found.append(Budget(payer=Payer.JOB, limit_micro_usd=job.budget_micro_usd, spent_micro_usd=spent_of_it))
    if job.sweep_budget_micro_usd is not None and job.parent_id is not None:
        spent_of_it = own.get(job.parent_id, 0)
        limit = job.sweep_budget_micro_usd
        found.append(Budget(payer=Payer.SWEEP, limit_micro_usd=limit, spent_micro_usd=spent_of_it))
    return [*found, *project_budgets(limits_of(job), spent, at_ms=at_ms)]


def pause_job(
    tx: Transaction,
    job: JobRow,
    budget: Budget,
    *,
    at_ms: int,
    attempt_number: int | None = None,
    data: Mapping[str, Any] = MappingProxyType({}),
    **columns: Any,
) -> JobState:
    """Take a locked job off the queue, or keep it from going there, until this budget is raised.

    Its attempt must have ended. `data` is said as well, and `columns` are set.
    """
    begun = job.attempt_count > 0
    state = tx.jobs.change(job, JobEvent.PAUSE, paused_by=budget.payer, interrupted=begun, phase="", **columns)
    if job.kind in ORDER_KINDS:
        tx.picture_orders.pause([job.id])
    tx.events.add(job.id, job.project_id, EventType.JOB_PAUSED, attempt_number, {**told(budget), **data}, at_ms)
    return state


def resume_job(tx: Transaction, job: JobRow, *, at_ms: int) -> JobState:
    """Put a locked, paused job into the queue; one that ran goes ahead of those that never did."""
    state = tx.jobs.change(job, JobEvent.RESUME, paused_by=None)
    if job.kind in ORDER_KINDS:
        tx.picture_orders.resume([job.id])
    data = {"resume_step": job.committed_step}
    tx.events.add(job.id, job.project_id, EventType.JOB_RESUMED, None, data, at_ms)
    return state


def reserve(tx: Transaction, ctx: Foundations, job: JobRecord, *, project: ProjectRecord | None = None) -> JobRecord:
    """Return the job with the money that it sets aside until its end, as `reservation_micro_usd` computes it.

    `project` is the job's, where it has been read already. A budget per month has to have room in the month of the
    submission. In a project with a budget two requests at once wait for one another here. Raises OverBudget when what
    is spent, what unfinished jobs have set aside and this do not fit into each budget.
    """
    project = project or tx.projects.get(job.project_id)
    asked, limited = _reservation(tx, job, project)
    if limited:
        require_room(tx, ctx, job, asked=asked)
    return job if asked == job.reserved_micro_usd else replace(job, reserved_micro_usd=asked)


def budget_faults(tx: Transaction, ctx: Foundations, job: JobRecord) -> list[QuotaFault]:
    """Return the faults that `reserve` would raise, for a job that is refused for other limits already."""
    asked, limited = _reservation(tx, job, tx.projects.get(job.project_id))
    return list(without_room(tx, ctx, job, asked=asked)) if limited else []


def _reservation(tx: Transaction, job: JobRecord, project: ProjectRecord | None) -> tuple[int, bool]:
    """Return what the job sets aside in micro-dollars, and whether the project has a budget."""
    limited = project is not None and (project.budget_micro_usd, project.monthly_budget_micro_usd) != (None, None)
    estimate = likely_cost_micro_usd(tx, job) if limited and job.budget_micro_usd is None else None
    return reservation_micro_usd(budget=job.budget_micro_usd, estimate=estimate), limited


def require_room(tx: Transaction, ctx: Foundations, job: JobRecord, *, asked: int) -> None:
    """Hold the project's budgets, if there are any, until the transaction ends. Raises OverBudget without room, with
    each budget that has none.
    """
    if faults := list(without_room(tx, ctx, job, asked=asked)):
        raise OverBudget("; ".join(f"{fault.message}: {fault.hint}" for fault in faults))


def without_room(tx: Transaction, ctx: Foundations, job: JobRecord, *, asked: int) -> Iterator[QuotaFault]:
    """Yield a fault for each budget of the project without room. The budgets are held until the transaction ends."""
    limits = tx.pausing.lock_limits(job.project_id)
    if not limits:
        return
    now_ms = ctx.clock.now_ms()
    spent = project_spent(tx, ctx, job.project_id, at_ms=now_ms)
    reserved = tx.spending.reserved(job.project_id, but=job.id)
    for budget in project_budgets(limits, spent, at_ms=now_ms):
        # One that is used up has no room for a job that sets nothing aside either.
        taken = {"spent": budget.spent_micro_usd, "reserved": reserved}
        if not fits(limit=budget.limit_micro_usd, **taken, asked=max(asked, 1)):
            yield _no_room(job, budget, reserved=reserved, asked=asked, at_ms=now_ms)


def _no_room(job: JobRecord, budget: Budget, *, reserved: int, asked: int, at_ms: int) -> QuotaFault:
    month = "" if budget.month is None else f" for {budget.month}"
    later = "" if budget.month is None else ", or submit it next month (months begin at midnight UTC)"
    return QuotaFault(
        where="project",
        message=f"of the budget of project {job.project_id}{month}, {format_usd(budget.limit_micro_usd)}, "
        f"{format_usd(budget.spent_micro_usd)} are spent and {format_usd(reserved)} set aside by jobs that have not "
        f"ended; this one would set {format_usd(asked)} aside",
        hint=f"give it a smaller budget_micro_usd, or have an administrator raise the project's{later}",
        quota=QuotaName.BUDGET if budget.month is None else QuotaName.MONTHLY_BUDGET,
        limit=budget.limit_micro_usd,
        used=budget.spent_micro_usd + reserved,
        free_at_ms=None if budget.month is None else month_end_ms(at_ms),
    )
