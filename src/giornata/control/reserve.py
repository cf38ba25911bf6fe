"""A job sets money of its project's budget aside before it may begin."""

from dataclasses import replace

from giornata.control.budgets import project_spent
from giornata.control.context import Foundations
from giornata.control.history import likely_cost_micro_usd
from giornata.control.ports.records import JobRecord, ProjectRecord
from giornata.control.ports.store import Transaction
from giornata.domain.budget import Budget, fits, project_budgets, reservation_micro_usd
from giornata.domain.errors import OverBudget
from giornata.domain.money import format_usd


def reserve(tx: Transaction, ctx: Foundations, job: JobRecord, *, project: ProjectRecord | None = None) -> JobRecord:
    """The job with what it sets aside until its end; see `domain.budget.reservation_micro_usd`.

    `project` is the job's, where it has been read already. A budget per month has to have room in the month of the
    submission. In a project with a budget two requests at once wait for one another here. Raises OverBudget when what
    is spent, what unfinished jobs have set aside and this do not fit into each budget.
    """
    project = project or tx.projects.get(job.project_id)
    limited = project is not None and (project.budget_micro_usd, project.monthly_budget_micro_usd) != (None, None)
    estimate = likely_cost_micro_usd(tx, job) if limited and job.budget_micro_usd is None else None
    asked = reservation_micro_usd(budget=job.budget_micro_usd, estimate=estimate)
    if limited:
        require_room(tx, ctx, job, asked=asked)
    return replace(job, reserved_micro_usd=asked)


def require_room(tx: Transaction, ctx: Foundations, job: JobRecord, *, asked: int) -> None:
    """Hold the project's budgets, if there are any, until the transaction ends. Raises OverBudget without room."""
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
            raise OverBudget(_no_room(job, budget, reserved=reserved, asked=asked))


def _no_room(job: JobRecord, budget: Budget, *, reserved: int, asked: int) -> str:
    month = "" if budget.month is None else f" for {budget.month}"
    later = "" if budget.month is None else ", or submit it next month (months begin at midnight UTC)"
    return (
        f"of the budget of project {job.project_id}{month}, {format_usd(budget.limit_micro_usd)}, "
        f"{format_usd(budget.spent_micro_usd)} are spent and {format_usd(reserved)} set aside by jobs that have not "
        f"ended; this one would set {format_usd(asked)} aside: give it a smaller budget_micro_usd, or have an "
        f"administrator raise the project's{later}"
    )
