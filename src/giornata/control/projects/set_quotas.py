"""Read and set the quotas of a project."""

from giornata.control.access.permissions import require_root_admin, require_user
from giornata.control.audit_log.record import record_call
from giornata.control.budgets.budgets import project_spent
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.records import ProjectRecord
from giornata.control.quotas.use import drawn_bytes
from giornata.control.text_limits import is_id
from giornata.control.timestamps import instant
from giornata.domain.accounts.audit_log import AuditVerb
from giornata.domain.billing.budget import month_end_ms
from giornata.domain.billing.quotas import QUOTA_NAMES, day_start_ms
from giornata.domain.errors import NotFound
from giornata.protocol.project.quotas import LimitUse, ProjectQuotas, SetQuotas


def read_quotas(ctx: Context, caller: Caller, project_id: str) -> ProjectQuotas:
    """Return the project's limits and what it uses of them. Raises Forbidden, and NotFound for a project that is not
    the caller's, unless the caller governs the installation.
    """
    require_user(caller)
    if not caller.is_root_admin and project_id != caller.project_id:
        raise NotFound(f"there is no project {project_id}")
    with ctx.store.read() as tx:
        return _reply(tx, ctx, project_id)


def set_quotas(ctx: Context, caller: Caller, project_id: str, request: SetQuotas) -> ProjectQuotas:
    """Set or lift limits of a project; those that are not given stay. What the project has already stays as well.

    This server goes by the new limits at once, others within `quota_memory.KEPT_MS`. Raises Forbidden unless the
    caller governs the installation, NotFound.
    """
    require_root_admin(caller)
    given = request.model_dump(include=request.model_fields_set)
    limits = {name: _stored(value) for name, value in given.items() if name in QUOTA_NAMES}
    with ctx.store.begin() as tx:
        there = is_id(project_id) and tx.projects.get(project_id) is not None
        if not there or (limits and not tx.quotas.set(project_id, limits)):
            raise NotFound(f"there is no project {project_id}")
        # Of a list of models its length: a pattern may be a URL with a token.
        changes = {name: len(value) if isinstance(value, list) else value for name, value in limits.items()}
        verb, now_ms = AuditVerb.PROJECT_QUOTAS, ctx.clock.now_ms()
        record_call(tx, caller, verb, project_id, at_ms=now_ms, project_id=project_id, changes=changes)
        reply = _reply(tx, ctx, project_id)
    ctx.memory.quotas.forget()
    return reply


def _stored(value: object) -> object:
    return list(dict.fromkeys(value)) if isinstance(value, tuple) else value


def _reply(tx: Transaction, ctx: Context, project_id: str) -> ProjectQuotas:
    project = tx.projects.get(project_id) if is_id(project_id) else None
    if project is None:
        raise NotFound(f"there is no project {project_id}")
    bases, adapters = project.allowed_base_models, project.allowed_adapters
    return ProjectQuotas(
        project_id=project_id,
        **_uses(tx, ctx, project),
        max_priority=project.max_priority,
        max_requests_per_s=project.max_requests_per_s,
        max_requests_per_s_per_key=project.max_requests_per_s_per_key,
        allowed_base_models=None if bases is None else tuple(bases),
        allowed_adapters=None if adapters is None else tuple(adapters),
    )


def _uses(tx: Transaction, ctx: Context, project: ProjectRecord) -> dict[str, LimitUse]:
    at_ms, project_id = ctx.clock.now_ms(), project.id
    counted = tx.quotas.counted(project_id, since_ms=day_start_ms(at_ms))
    stored = counted.blob_bytes + drawn_bytes(tx, ctx, project_id, at_ms=at_ms)
    spent = project_spent(tx, ctx, project_id, at_ms=at_ms).month_micro_usd
    return {
        "running_jobs": LimitUse(limit=project.max_running_jobs, used=counted.running_jobs),
        "queued_jobs": LimitUse(limit=project.max_queued_jobs, used=counted.queued_jobs),
        "open_orders": LimitUse(limit=project.max_open_orders, used=counted.open_orders),
        "pictures_per_day": LimitUse(
            limit=project.max_pictures_per_day,
            used=counted.pictures,
            free_at=instant(day_start_ms(at_ms, days=1)),
        ),
        "stored_bytes": LimitUse(limit=project.max_stored_bytes, used=stored),
        "monthly_spend_micro_usd": LimitUse(
            limit=project.monthly_budget_micro_usd, used=spent, free_at=instant(month_end_ms(at_ms))
        ),
    }
