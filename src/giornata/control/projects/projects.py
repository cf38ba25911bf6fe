"""Create, list and limit projects, and show them with their money."""

from giornata.control.access.permissions import require_root_admin, require_user
from giornata.control.audit_log.record import record_call
from giornata.control.budgets.budgets import project_spent
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.pages import check_limit, cut, decode_cursor
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.records import ProjectRecord
from giornata.control.storage.datasets import max_pictures_of
from giornata.control.text_limits import is_id
from giornata.control.timestamps import instant
from giornata.domain.accounts.audit_log import AuditVerb
from giornata.domain.billing.budget import month_of
from giornata.domain.errors import Conflict, NotFound
from giornata.domain.generation.picture import SafetyPolicy
from giornata.protocol.project.admin import CreateProject, Project, ProjectPage, SetLimits, SetSafety


def project_reply(tx: Transaction, ctx: Context, project: ProjectRecord) -> Project:
    """Return the project with its money as of now, if it has a budget."""
    made = Project(
        id=project.id,
        name=project.name,
        created_at=instant(project.created_at_ms),
        created_by=project.created_by,
        max_pictures=max_pictures_of(ctx, project),
        safety=SafetyPolicy(project.safety),
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


def read_project(tx: Transaction, ctx: Context, project_id: str) -> Project:
    """Return the project as this transaction sees it. Raises NotFound."""
    project = tx.projects.get(project_id)
    if project is None:
        raise NotFound(f"there is no project {project_id}")
    return project_reply(tx, ctx, project)


def own_project(ctx: Context, caller: Caller) -> Project:
    """Return the caller's project with its money. Raises Forbidden for a node's key, and NotFound."""
    require_user(caller)
    with ctx.store.read() as tx:
        return read_project(tx, ctx, caller.project_id)


def create_project(ctx: Context, caller: Caller, request: CreateProject) -> Project:
    """Make a project. Raises Forbidden unless the caller governs the installation, Conflict when the id is taken."""
    require_root_admin(caller)
    now_ms, name = ctx.clock.now_ms(), request.name or request.id
    project = ProjectRecord(id=request.id, name=name, created_at_ms=now_ms, created_by=caller.maker)
    with ctx.store.begin() as tx:
        if not tx.projects.add(project):
            raise Conflict(f"there is a project {request.id} already")
        verb = AuditVerb.PROJECT_CREATE
        record_call(tx, caller, verb, project.id, at_ms=now_ms, project_id=project.id)
        return project_reply(tx, ctx, project)


def list_projects(ctx: Context, caller: Caller, cursor: str | None, limit: int) -> ProjectPage:
    """Return all projects for an admin of the installation, newest first; for everybody else their own."""
    require_user(caller)
    check_limit(limit)
    only = None if caller.is_root_admin else caller.project_id
    with ctx.store.read() as tx:
        rows = tx.projects.page(only=only, before=decode_cursor(cursor), limit=limit + 1)
        page, following = cut(rows, limit, lambda project: (project.created_at_ms, project.id))
        items = tuple(project_reply(tx, ctx, project) for project in page)
    return ProjectPage(items=items, next=following)


def set_project_limits(ctx: Context, caller: Caller, project_id: str, request: SetLimits) -> Project:
    """Set a project's limits, or lift them to those of the installation. Datasets that exist stay as they are.

    Raises Forbidden unless the caller governs the installation, NotFound.
    """
    require_root_admin(caller)
    with ctx.store.begin() as tx:
        if not is_id(project_id) or not tx.projects.set_max_pictures(project_id, request.max_pictures):
            raise NotFound(f"there is no project {project_id}")
        verb, changes = AuditVerb.PROJECT_LIMITS, {"max_pictures": request.max_pictures}
        record_call(tx, caller, verb, project_id, at_ms=ctx.clock.now_ms(), project_id=project_id, changes=changes)
        return read_project(tx, ctx, project_id)


def set_project_safety(ctx: Context, caller: Caller, project_id: str, request: SetSafety) -> Project:
    """Set what becomes of a project's unsafe pictures. It holds for pictures that are leased from then on; another
    server process may lease for up to `ORDER_SPEC_MS` by what held before.

    Raises Forbidden unless the caller governs the installation, NotFound.
    """
    require_root_admin(caller)
    with ctx.store.begin() as tx:
        if not is_id(project_id) or not tx.projects.set_safety(project_id, request.safety):
            raise NotFound(f"there is no project {project_id}")
        verb, now_ms = AuditVerb.PROJECT_SAFETY, ctx.clock.now_ms()
        record_call(
            tx, caller, verb, project_id, at_ms=now_ms, project_id=project_id, changes={"safety": request.safety}
        )
        project = read_project(tx, ctx, project_id)
    ctx.memory.forget_order_specs()
    return project
