"""Tables for the audit log and the newest row of each of its chains."""

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Index, String, Table

from giornata.store.schema.columns import RowId, at, metadata

_WAITS = sa.text("number IS NULL")
audit_log = Table(
    "audit_log",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("project_id", String(40), nullable=False),  # no foreign key: the log stays when a project goes
    at("at_ms"),
    Column("actor_kind", String(16), nullable=False),
    Column("actor", String(200), nullable=False),
    Column("key_id", String(200), nullable=False),
    Column("address", String(64), nullable=False),
    Column("request_id", String(64), nullable=False),
    Column("verb", String(48), nullable=False),
    Column("target", String(512), nullable=False),
    Column("changes", sa.JSON, nullable=False),
    Column("number", BigInteger),  # place in the project's chain, from 1; NULL until a loop has put the row there
    Column("previous_sha256", String(64)),
    Column("sha256", String(64)),
    Index("uq_audit_log_number", "project_id", "number", unique=True),
    Index("ix_audit_log_project", "project_id", "id"),
    Index("ix_audit_log_waits", "id", sqlite_where=_WAITS, postgresql_where=_WAITS),
)
audit_log_heads = Table(
    "audit_log_heads",
    metadata,
    Column("project_id", String(40), primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("sha256", String(64), nullable=False),
)
