"""A project as those who may see it do."""

from giornata.control.budgets import project_spent
from giornata.control.context import Context
from giornata.control.instants import instant
from giornata.control.ports.records import ProjectRecord
from giornata.control.ports.store import Transaction
from giornata.domain.budget import month_of
from giornata.domain.errors import NotFound
from giornata.protocol.admin import Project


def project_reply(tx: Transaction, ctx: Context, project: ProjectRecord) -> Project:
    """With its money as of now, if it has a budget."""
    made = Project(
        id=project.id,
        name=project.name,
        created_at=instant(project.created_at_ms),
        max_pictures=max_pictures_of(ctx, project),
    )
    if project.budget_micro_usd is None and project.monthly_budget_micro_usd is None:
        return made
    now_ms = ctx.clock.now_ms()
    spent = project_spent(tx, ctx, project.id, at_ms=now_ms)
    money: dict[str, object] = {
        "budget_micro_usd": project.budget_micro_usd,
        "spent_micro_usd": spent.total_micro_usd,
        "reserved_micro_usd": tx.spending.reserved(project.id),
    }
    if project.monthly_budget_micro_usd is not None:
        money |= {
            "monthly_budget_micro_usd": project.monthly_budget_micro_usd,
            "month": month_of(now_ms),
            "month_spent_micro_usd": spent.month_micro_usd,
        }
    return made.model_copy(update=money)


def max_pictures_of(ctx: Context, project: ProjectRecord | None) -> int:
    """Most pictures of a dataset: the project's own limit, or else the installation's."""
    own = None if project is None else project.max_pictures
    return ctx.policy.max_pictures if own is None else own


def read_project(tx: Transaction, ctx: Context, project_id: str) -> Project:
    """As this transaction sees it. Raises NotFound."""
    project = tx.projects.get(project_id)
    if project is None:
        raise NotFound(f"there is no project {project_id}")
    return project_reply(tx, ctx, project)
