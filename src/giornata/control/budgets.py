"""What is spent of the budgets that jobs stand under. Asks nothing of the store for those that have none."""

from collections.abc import Mapping, Sequence
from typing import Any

from giornata.control.context import Foundations
from giornata.control.memory import Settled
from giornata.control.ports.store import Transaction
from giornata.control.ports.work_rows import JobRow
from giornata.domain.budget import Budget, Payer, first_used_up
from giornata.protocol.specs import CANARY_KIND

# What ended longer ago than this is added up once and remembered; no transaction takes so long.
SETTLES_MS = 600_000
BEGINNING_MS = -(2**62)


def budgets_each(
    tx: Transaction, ctx: Foundations, jobs: Sequence[JobRow], *, at_ms: int
) -> Mapping[str, tuple[Budget, ...]]:
    """The budgets of these locked jobs by their ids, the job's own before the project's; none for most."""
    own = tx.spending.of_jobs([job.id for job in jobs if job.budget_micro_usd is not None])
    limited = sorted({job.project_id for job in jobs if job.project_budget_micro_usd is not None})
    spent = {project_id: project_spent(tx, ctx, project_id, at_ms=at_ms) for project_id in limited}
    return {job.id: tuple(_budgets(job, own.get(job.id, 0), spent.get(job.project_id, 0))) for job in jobs}


def used_up(tx: Transaction, ctx: Foundations, job: JobRow, *, at_ms: int) -> Budget | None:
    """The budget that stops this locked job now; None when it may go on."""
    return first_used_up(budgets_each(tx, ctx, [job], at_ms=at_ms)[job.id])


def project_spent(tx: Transaction, ctx: Foundations, project_id: str | None, *, at_ms: int) -> int:
    """By all attempts of the project, or of all, in micro-dollars. After the first time it reads only what is new."""
    before_ms = at_ms - SETTLES_MS
    known = ctx.memory.settled(project_id)
    if known is None or known.before_ms > at_ms:  # the latter: the clock was set back
        known = Settled(before_ms=BEGINNING_MS, micro_usd=0)
    if known.before_ms + SETTLES_MS <= before_ms:
        more = tx.spending.settled(project_id, from_ms=known.before_ms, before_ms=before_ms)
        known = Settled(before_ms=before_ms, micro_usd=known.micro_usd + more)
        ctx.memory.remember_settled(project_id, known)
    return known.micro_usd + tx.spending.unsettled(project_id, since_ms=known.before_ms)


def told(budget: Budget) -> dict[str, Any]:
    """What an event says of it."""
    return {
        "budget": budget.payer,
        "limit_micro_usd": budget.limit_micro_usd,
        "spent_micro_usd": budget.spent_micro_usd,
    }


def _budgets(job: JobRow, own_spent: int, project_spent: int) -> list[Budget]:
    found: list[Budget] = []
    if job.kind == CANARY_KIND:  # the platform's own affair
        return found
    if job.budget_micro_usd is not None:
        found.append(Budget(payer=Payer.JOB, limit_micro_usd=job.budget_micro_usd, spent_micro_usd=own_spent))
    if job.project_budget_micro_usd is not None:
        limit = job.project_budget_micro_usd
        found.append(Budget(payer=Payer.PROJECT, limit_micro_usd=limit, spent_micro_usd=project_spent))
    return found
