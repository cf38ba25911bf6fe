"""Tables for the results, reports and costs of attempts."""

import sqlalchemy as sa
from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, Integer, String, Table, Text

from giornata.store.schema.columns import RowId, at, metadata

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("job_id", ForeignKey("jobs.id"), primary_key=True),
    Column("step", BigInteger, primary_key=True),
    Column("project_id", String(40), nullable=False),
    Column("attempt_number", Integer, nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("rejected", Boolean, nullable=False, server_default=sa.false()),
    Column("doubted_by", Integer),  # the latest attempt that could not fetch it, though the server can
    at("created_at_ms"),
    Column(
        "pinned", Boolean, nullable=False, server_default=sa.false()
    ),  # neither retention nor a later one takes it
    sa.ForeignKeyConstraint(["project_id", "sha256"], ["blobs.project_id", "blobs.sha256"]),
    Index("ix_checkpoints_blob", "project_id", "sha256"),
)
artifacts = Table(
    "artifacts",
    metadata,
    Column("job_id", ForeignKey("jobs.id"), primary_key=True),
    Column("name", String(255), primary_key=True),
    Column("attempt_id", ForeignKey("attempts.id"), nullable=False),
    Column("project_id", String(40), nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("media_type", String(128), nullable=False),
    at("created_at_ms"),
    sa.ForeignKeyConstraint(["project_id", "sha256"], ["blobs.project_id", "blobs.sha256"]),
    Index("ix_artifacts_blob", "project_id", "sha256"),
)
OF_IMPORTED_HISTORY = "imported:"
"""Begins the `notice_id` of events that are the history of an imported job. No webhook gets them."""

events = Table(
    "events",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("project_id", ForeignKey("projects.id"), nullable=False),
    Column("job_id", ForeignKey("jobs.id"), nullable=False),
    Column("type", String(64), nullable=False),
    Column("attempt_number", Integer),
    Column("data", sa.JSON, nullable=False),
    at("at_ms"),
    Column("notice_id", String(64)),  # drawn by whoever says it, so that saying it twice is saying it once
    Index("ix_events_job", "job_id", "id"),
    Index(
        "uq_events_notice",
        "job_id",
        "attempt_number",
        "notice_id",
        unique=True,
        sqlite_where=sa.text("notice_id IS NOT NULL"),
        postgresql_where=sa.text("notice_id IS NOT NULL"),
    ),
)
HAPPENED_HERE = events.c.notice_id.is_(None) | events.c.notice_id.not_like(f"{OF_IMPORTED_HISTORY}%")
logs = Table(
    "logs",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("job_id", ForeignKey("jobs.id"), nullable=False),
    Column("attempt_number", Integer, nullable=False),
    Column("number", BigInteger, nullable=False),  # line number within the attempt
    Column("line", Text, nullable=False),
    at("at_ms"),
    Index("ix_logs_job", "job_id", "id"),
    Index("uq_logs_line", "job_id", "attempt_number", "number", unique=True),
)
metrics = Table(
    "metrics",
    metadata,
    Column("job_id", ForeignKey("jobs.id"), primary_key=True),
    Column("step", BigInteger, primary_key=True),
    Column("attempt_number", Integer, nullable=False),
    Column("values", sa.JSON, nullable=False),
    at("at_ms"),
)
ledger = Table(
    "ledger",
    metadata,
    Column("attempt_id", ForeignKey("attempts.id"), primary_key=True),
    Column("seq", Integer, primary_key=True),  # an attempt that lapsed and came back has more than one interval
    Column("project_id", ForeignKey("projects.id"), nullable=False),
    Column("job_id", ForeignKey("jobs.id"), nullable=False),
    at("from_ms"),
    at("to_ms"),
    Column("price_micro_usd_per_hour", BigInteger, nullable=False),
    Column("amount_micro_usd", BigInteger, nullable=False),  # if it had the node for itself all the time
    Index("ix_ledger_job", "job_id"),
    Index("ix_ledger_project", "project_id", "from_ms"),
)
