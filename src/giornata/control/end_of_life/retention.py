"""Retention of a project: read it, set it, and look at its effects before it is set."""

from giornata.control.access.members import require_project
from giornata.control.access.permissions import require_admin, require_scope
from giornata.control.audit_log.record import record_call
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.end_of_life_store import AgedRows
from giornata.control.timestamps import instant
from giornata.domain.accounts.audit_log import AuditVerb
from giornata.domain.errors import NotFound
from giornata.domain.files.retention import IN_DATABASE, KeptClass, Retention, ended_before_ms
from giornata.protocol.project.admin import Scope
from giornata.protocol.project.end_of_life import AgedClass, ProjectRetention, RetentionPreview, SetRetention


def read_retention_of(ctx: Context, caller: Caller, project_id: str) -> ProjectRetention:
    """Return how long the project keeps what. Raises Forbidden, NotFound."""
    require_scope(caller, Scope.JOBS_READ)
    with ctx.store.read() as tx:
        require_project(tx, caller, project_id)
        return _reply(project_id, _stored(tx, project_id))


def set_retention(ctx: Context, caller: Caller, project_id: str, request: SetRetention) -> ProjectRetention:
    """Set how long the project keeps what, from now on; a loop takes what is older.

    Raises Forbidden unless the caller owns the project or governs the installation, NotFound.
    """
    require_admin(caller)
    with ctx.store.begin() as tx:
        require_project(tx, caller, project_id)
        asked = _asked(request)
        tx.retention.set(project_id, asked)
        verb, changes = AuditVerb.PROJECT_RETENTION, {kept.value: days for kept, days in asked.items()}
        record_call(tx, caller, verb, project_id, at_ms=ctx.clock.now_ms(), project_id=project_id, changes=changes)
        return _reply(project_id, _stored(tx, project_id))


def preview_retention(
    ctx: Context, caller: Caller, project_id: str, request: SetRetention | None = None
) -> RetentionPreview:
    """Return what the loop would take now, by what is set, or as if `request` was. Nothing is changed.

    Raises Forbidden unless the caller owns the project or governs the installation, NotFound.
    """
    require_admin(caller)
    now_ms = ctx.clock.now_ms()
    with ctx.store.read() as tx:
        require_project(tx, caller, project_id)
        wanted = _stored(tx, project_id) if request is None else _asked(request)
        items = [
            _aged(kept, days, tx.retention.aged(project_id, kept, before_ms=ended_before_ms(days, now_ms=now_ms)))
            for kept, days in wanted.items()
        ]
    return RetentionPreview(
        project_id=project_id,
        items=items,
        size_bytes=sum(each.size_bytes for each in items),
        stored_bytes=sum(each.size_bytes for each in items if not each.is_estimate),
    )


def _stored(tx: Transaction, project_id: str) -> Retention:
    stored = tx.retention.of_project(project_id)
    if stored is None:
        raise NotFound(f"there is no project {project_id}")
    return stored


def _asked(request: SetRetention) -> Retention:
    days = {kept: getattr(request, kept.value) for kept in KeptClass}
    return {kept: count for kept, count in days.items() if count is not None}


def _reply(project_id: str, retention: Retention) -> ProjectRetention:
    return ProjectRetention(project_id=project_id, **{kept.value: days for kept, days in retention.items()})


def _aged(kept: KeptClass, days: int, rows: AgedRows) -> AgedClass:
    return AgedClass(
        kept=kept,
        days=days,
        count=rows.count,
        size_bytes=rows.size_bytes,
        is_estimate=kept in IN_DATABASE,
        oldest_at=None if rows.oldest_at_ms is None else instant(rows.oldest_at_ms),
        examples=list(rows.examples),
    )
