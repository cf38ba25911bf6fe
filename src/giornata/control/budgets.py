"""What is spent of the budgets that jobs stand under. Asks nothing of the store for those that have none."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from giornata.control.context import Foundations
from giornata.control.memory import Settled
from giornata.control.ports.store import Transaction
from giornata.control.ports.work_rows import JobRow
from giornata.domain.budget import (
    Budget,
    Payer,
    ProjectLimits,
    Spent,
    first_used_up,
    month_start_ms,
    project_budgets,
)
from giornata.protocol.specs import CANARY_KIND

# What ended longer ago than this is added up once and remembered; no transaction takes so long.
SETTLES_MS = 600_000
BEGINNING_MS = -(2**62)


def budgets_each(
    tx: Transaction, ctx: Foundations, jobs: Sequence[JobRow], *, at_ms: int
) -> Mapping[str, tuple[Budget, ...]]:
    """The budgets of these locked jobs by their ids, the job's own before the project's; none for most."""
    own = tx.spending.of_jobs([job.id for job in jobs if job.budget_micro_usd is not None])
    limited = sorted({job.project_id for job in jobs if limits_of(job)})
    spent = {project_id: project_spent(tx, ctx, project_id, at_ms=at_ms) for project_id in limited}
    return {
        job.id: tuple(_budgets(job, own.get(job.id, 0), spent.get(job.project_id, Spent()), at_ms=at_ms))
        for job in jobs
    }


def limits_of(job: JobRow) -> ProjectLimits:
    """The project's, of a locked job."""
    return ProjectLimits(
        total_micro_usd=job.project_budget_micro_usd, monthly_micro_usd=job.project_monthly_budget_micro_usd
    )


def used_up(tx: Transaction, ctx: Foundations, job: JobRow, *, at_ms: int) -> Budget | None:
    """The budget that stops this locked job now; None when it may go on."""
    return first_used_up(budgets_each(tx, ctx, [job], at_ms=at_ms)[job.id])


def project_spent(tx: Transaction, ctx: Foundations, project_id: str | None, *, at_ms: int) -> Spent:
    """By all attempts of the project, or of all, ever and in this month. After the first time it reads only what is
    new."""
    before_ms, month_ms = at_ms - SETTLES_MS, month_start_ms(at_ms)
    known = _settled(ctx, project_id, at_ms=at_ms, month_ms=month_ms)
    if known.before_ms + SETTLES_MS <= before_ms:
        more = tx.spending.settled(project_id, from_ms=known.before_ms, before_ms=before_ms, month_ms=month_ms)
        known = Settled(before_ms=before_ms, month_ms=month_ms, spent=known.spent + more)
        ctx.memory.remember_settled(project_id, known)
    return known.spent + tx.spending.unsettled(project_id, since_ms=known.before_ms, month_ms=month_ms)


def _settled(ctx: Foundations, project_id: str | None, *, at_ms: int, month_ms: int) -> Settled:
    """What is remembered, as far as it holds for this month."""
    known = ctx.memory.settled(project_id)
    if known is not None and known.month_ms < month_ms and known.before_ms <= month_ms:
        # All of it had ended before the month began.
        return replace(known, month_ms=month_ms, spent=replace(known.spent, month_micro_usd=0))
    # The clock was set back, or the sums are of another month.
    if known is None or known.before_ms > at_ms or known.month_ms != month_ms:
        return Settled(before_ms=BEGINNING_MS, month_ms=month_ms, spent=Spent())
    return known


def told(budget: Budget) -> dict[str, Any]:
    """What an event says of it. A budget per month is the project's too."""
    data = {
        "budget": Payer.PROJECT if budget.payer is Payer.MONTH else budget.payer,
        "limit_micro_usd": budget.limit_micro_usd,
        "spent_micro_usd": budget.spent_micro_usd,
    }
    return data if budget.month is None else {**data, "month": budget.month}


def _budgets(job: JobRow, own_spent: int, spent: Spent, *, at_ms: int) -> list[Budget]:
    found: list[Budget] = []
    if job.kind == CANARY_KIND:  # the platform's own affair
        return found
    if job.budget_micro_usd is not None:
        found.append(Budget(payer=Payer.JOB, limit_micro_usd=job.budget_micro_usd, spent_micro_usd=own_spent))
    return [*found, *project_budgets(limits_of(job), spent, at_ms=at_ms)]
