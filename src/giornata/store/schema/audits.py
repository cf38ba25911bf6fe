"""The table of replay audits."""

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, ForeignKey, Index, Integer, String, Table, Text

from giornata.store.schema.columns import at, metadata

audits = Table(
    "audits",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("project_id", String(40), nullable=False),
    Column("job_id", ForeignKey("jobs.id"), nullable=False),
    Column("attempt_id", ForeignKey("attempts.id"), nullable=False),  # that committed the checkpoint
    Column("attempt_number", Integer, nullable=False),
    Column("machine_id", String(128), nullable=False),
    Column("fleet", String(128), nullable=False),
    Column("device", String(128), nullable=False),
    Column("versions", sa.JSON, nullable=False),
    Column("from_step", BigInteger, nullable=False),
    Column("to_step", BigInteger, nullable=False),
    Column("claimed_sha256", String(64), nullable=False),
    Column("sha256", String(64)),  # the same while its bytes are kept; NULL: they are not
    Column("state", String(16), nullable=False),
    Column("message", Text, nullable=False, server_default=""),
    Column("runs", sa.JSON, nullable=False),  # machines that repeated the stretch, or are to, in order
    Column("guilty_machine_id", String(128)),
    at("created_at_ms"),
    at("decided_at_ms", nullable=True),
    sa.ForeignKeyConstraint(["project_id", "sha256"], ["blobs.project_id", "blobs.sha256"]),
    Index("ix_audits_job", "job_id", "to_step"),
    Index("ix_audits_machine", "machine_id", "created_at_ms"),
    Index("ix_audits_guilty", "guilty_machine_id"),
    Index("ix_audits_blob", "project_id", "sha256"),
    Index(
        "ix_audits_open",
        "created_at_ms",
        sqlite_where=sa.text("decided_at_ms IS NULL"),
        postgresql_where=sa.text("decided_at_ms IS NULL"),
    ),
)
