"""Read the audit log: list it, export its chains, and tell their newest rows.

Those who govern a project read the chain of the project. Those who govern the installation read all.
"""

import json
from dataclasses import replace
from datetime import UTC, datetime

from giornata.control.access.members import require_project
from giornata.control.access.permissions import require_admin
from giornata.control.audit_log.chain import chain_rows, exported_row
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.pages import check_after, check_limit, cut, decode_cursor
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.audit_log_store import AuditFilter, AuditLogRow
from giornata.control.text_limits import is_id
from giornata.control.timestamps import EPOCH, instant
from giornata.domain.accounts.audit_log import ChainLink
from giornata.protocol.account.audit_log import AuditLogEntry, AuditLogHead, AuditLogHeads, AuditLogPage


def list_audit_log(ctx: Context, caller: Caller, wanted: AuditFilter, cursor: str | None, limit: int) -> AuditLogPage:
    """Return rows, newest first: of all projects for an operator who names none, else of the project.

    Raises Forbidden, NotFound for a project that the caller does not see, InvalidInput.
    """
    require_admin(caller)
    check_limit(limit)
    place = decode_cursor(cursor)
    with ctx.store.read() as tx:
        wanted = replace(wanted, project_id=_project(tx, caller, wanted.project_id))
        rows = tx.audit_log.page(wanted, before=None if place is None else place[0], limit=limit + 1)
    page, following = cut(rows, limit, lambda row: (row.id, ""))
    return AuditLogPage(items=[_entry(row) for row in page], next=following)


def read_heads(ctx: Context, caller: Caller, project_id: str | None) -> AuditLogHeads:
    """Return the newest row of the project's chain; for an operator who names no project, of all chains.

    Rows that wait are chained first. Raises Forbidden, NotFound.
    """
    require_admin(caller)
    with ctx.store.read() as tx:
        project_id = _project(tx, caller, project_id)
    chain_rows(ctx)
    with ctx.store.read() as tx:
        heads = tx.audit_log.heads(project_id=project_id)
    return AuditLogHeads(
        items=[AuditLogHead(project_id=each, number=head.number, sha256=head.sha256) for each, head in heads.items()]
    )


def export_lines(ctx: Context, caller: Caller, project_id: str | None, *, after: int, limit: int) -> list[str]:
    """Return rows of one chain as JSON, in the chain's order, with numbers above `after`; the caller's own project
    by default. The last line names the newest row of the chain: `{"head": …}`.

    Rows that wait are chained first. Raises Forbidden, NotFound, InvalidInput.
    """
    require_admin(caller)
    check_after(after, where="after")
    check_limit(limit)
    with ctx.store.read() as tx:
        owner = _project(tx, caller, project_id) or caller.project_id
    chain_rows(ctx)
    with ctx.store.read() as tx:
        head = tx.audit_log.heads(project_id=owner).get(owner, ChainLink())
        rows = tx.audit_log.chained(owner, after=after, up_to=head.number, limit=limit)
    named = {"head": {"project_id": owner, "number": head.number, "sha256": head.sha256}}
    return [json.dumps(each, separators=(",", ":")) for each in (*map(exported_row, rows), named)]


def instant_ms(at: datetime | None) -> int | None:
    """Return an instant in epoch milliseconds; one without a time zone is UTC."""
    if at is None:
        return None
    aware = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return round((aware - EPOCH).total_seconds() * 1000)


def _project(tx: Transaction, caller: Caller, project_id: str | None) -> str | None:
    """Return the project whose rows the caller asks for; None: all. Raises NotFound for one that is not seen.

    The log of a project that is gone stays for operators.
    """
    if project_id is None:
        return None if caller.is_root_admin else caller.project_id
    of_it = AuditFilter(project_id=project_id)
    if caller.is_root_admin and is_id(project_id) and tx.audit_log.page(of_it, before=None, limit=1):
        return project_id
    require_project(tx, caller, project_id)
    return project_id


def _entry(row: AuditLogRow) -> AuditLogEntry:
    fields = {name: value for name, value in exported_row(row).items() if name != "at_ms"}
    return AuditLogEntry(**fields, at=instant(row.at_ms))
