"""Queries for the audit log and its chains."""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.user_queries import audit_log_store
from giornata.control.ports.user_queries.audit_log_store import AuditFilter, AuditLogRow, NewAuditRow
from giornata.domain.accounts.audit_log import ChainLink
from giornata.store.database.rows import Queries, columns, insert_for, insert_rows, record_of, update_rows
from giornata.store.schema import audit_log, audit_log_heads

COLUMNS = columns(audit_log, AuditLogRow)
NEW_FIELDS = NewAuditRow.__slots__


class AuditLog(Queries, audit_log_store.AuditLog):
    def add_each(self, rows: Sequence[NewAuditRow]) -> None:
        given = [{name: getattr(row, name) for name in NEW_FIELDS} for row in rows]
        insert_rows(self._connection, self._dialect_name, audit_log, given)

    def page(self, wanted: AuditFilter, *, before: int | None, limit: int) -> list[AuditLogRow]:
        query = sa.select(*COLUMNS).where(*_narrowed(wanted))
        if before is not None:
            query = query.where(audit_log.c.id < before)
        return self._rows(query.order_by(audit_log.c.id.desc()).limit(limit))

    def chained(self, project_id: str, *, after: int, up_to: int, limit: int) -> list[AuditLogRow]:
        number = audit_log.c.number
        query = sa.select(*COLUMNS).where(audit_log.c.project_id == project_id, number > after, number <= up_to)
        return self._rows(query.order_by(number).limit(limit))

    def chained_projects(self) -> list[str]:
        query = sa.select(audit_log.c.project_id).where(audit_log.c.number.is_not(None)).distinct()
        return list(self._connection.scalars(query))

    def unchained(self, *, limit: int) -> list[AuditLogRow]:
        query = sa.select(*COLUMNS).where(audit_log.c.number.is_(None))
        return self._rows(query.order_by(audit_log.c.id).limit(limit))

    def heads(self, *, project_id: str | None = None) -> Mapping[str, ChainLink]:
        query = sa.select(audit_log_heads).order_by(audit_log_heads.c.project_id)
        return self._heads(query if project_id is None else query.where(audit_log_heads.c.project_id == project_id))

    def lock_heads(self, project_ids: Sequence[str]) -> Mapping[str, ChainLink]:
        query = sa.select(audit_log_heads).where(audit_log_heads.c.project_id.in_(project_ids))
        return self._heads(query.order_by(audit_log_heads.c.project_id).with_for_update())

    def chain(self, rows: Sequence[Mapping[str, Any]]) -> int:
        return update_rows(self._connection, self._dialect_name, audit_log, rows, number=None)

    def put_heads(self, heads: Mapping[str, ChainLink]) -> None:
        statement = insert_for(self._dialect_name, audit_log_heads)
        statement = statement.on_conflict_do_update(
            index_elements=[audit_log_heads.c.project_id],
            set_={name: statement.excluded[name] for name in ("number", "sha256")},
        )
        rows = [
            {"project_id": project_id, "number": head.number, "sha256": head.sha256}
            for project_id, head in sorted(heads.items())
        ]
        self._connection.execute(statement, rows)

    def _rows(self, query: sa.Select[Any]) -> list[AuditLogRow]:
        return [record_of(AuditLogRow, row) for row in self._connection.execute(query)]

    def _heads(self, query: sa.Select[Any]) -> dict[str, ChainLink]:
        rows = self._connection.execute(query)
        return {row.project_id: ChainLink(number=row.number, sha256=row.sha256) for row in rows}


def _narrowed(wanted: AuditFilter) -> list[sa.ColumnElement[bool]]:
    """Return the conditions of a filter."""
    same = {name: getattr(wanted, name) for name in ("project_id", "actor", "verb", "target")}
    found = [audit_log.c[name] == value for name, value in same.items() if value is not None]
    if wanted.since_ms is not None:
        found.append(audit_log.c.at_ms >= wanted.since_ms)
    if wanted.until_ms is not None:
        found.append(audit_log.c.at_ms < wanted.until_ms)
    return found
