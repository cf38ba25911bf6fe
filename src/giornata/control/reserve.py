"""A job sets money of its project's budget aside before it may begin."""

from dataclasses import replace

from giornata.control.budgets import project_spent
from giornata.control.context import Foundations
from giornata.control.history import likely_cost_micro_usd
from giornata.control.ports.records import JobRecord, ProjectRecord
from giornata.control.ports.store import Transaction
from giornata.domain.budget import fits, reservation_micro_usd
from giornata.domain.errors import OverBudget
from giornata.domain.money import format_usd


def reserve(tx: Transaction, ctx: Foundations, job: JobRecord, *, project: ProjectRecord | None = None) -> JobRecord:
    """The job with what it sets aside until its end; see `domain.budget.reservation_micro_usd`.

    `project` is the job's, where it has been read already. In a project with a budget two requests at once wait for
    one another here. Raises OverBudget when what is spent, what unfinished jobs have set aside and this do not fit
    into the budget.
    """
    project = project or tx.projects.get(job.project_id)
    limited = project is not None and project.budget_micro_usd is not None
    estimate = likely_cost_micro_usd(tx, job) if limited and job.budget_micro_usd is None else None
    asked = reservation_micro_usd(budget=job.budget_micro_usd, estimate=estimate)
    if limited:
        require_room(tx, ctx, job, asked=asked)
    return replace(job, reserved_micro_usd=asked)


def require_room(tx: Transaction, ctx: Foundations, job: JobRecord, *, asked: int) -> None:
    """Hold the project's budget, if there is one, until the transaction ends. Raises OverBudget without room."""
    limit = tx.pausing.lock_budget(job.project_id)
    if limit is None:
        return
    spent = project_spent(tx, ctx, job.project_id, at_ms=ctx.clock.now_ms())
    reserved = tx.spending.reserved(job.project_id, but=job.id)
    # One that is used up has no room for a job that sets nothing aside either.
    if not fits(limit=limit, spent=spent, reserved=reserved, asked=max(asked, 1)):
        raise OverBudget(
            f"of the budget of project {job.project_id}, {format_usd(limit)}, {format_usd(spent)} are spent and "
            f"{format_usd(reserved)} set aside by jobs that have not ended; this one would set {format_usd(asked)} "
            "aside: give it a smaller budget_micro_usd, or have an administrator raise the project's"
        )
