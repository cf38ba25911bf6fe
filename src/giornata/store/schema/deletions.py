"""The table of what was deleted: a line for each job, dataset and project, which stays."""

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Index, Integer, String, Table

from giornata.store.schema.columns import RowId, at, metadata

_IS_OPEN = sa.text("finished_at_ms IS NULL")
deletions = Table(
    "deletions",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("project_id", String(40), nullable=False),
    Column("what", String(16), nullable=False),  # job, dataset or project
    Column("target_id", String(64), nullable=False),
    Column("asked_by", String(40), nullable=False),  # the person or the key
    at("asked_at_ms"),
    at("finished_at_ms", nullable=True),  # None: rows or bytes may be left, and a loop goes on
    Column("objects", Integer, nullable=False, server_default="0"),  # that were deleted in storage
    Column("size_bytes", BigInteger, nullable=False, server_default="0"),  # of these objects
    Index("ix_deletions_open", "id", sqlite_where=_IS_OPEN, postgresql_where=_IS_OPEN),
)
