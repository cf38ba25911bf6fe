"""The tables. Instants are epoch milliseconds (UTC) of the server's clock; money is integer micro-dollars.

Every row belongs to a project, directly or through the job that it hangs on.
"""

import sqlalchemy as sa
from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, Integer, MetaData, String, Table, Text

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# SQLite counts a rowid by itself only in a column of type INTEGER.
RowId = BigInteger().with_variant(Integer, "sqlite")


def _at(name: str, *, nullable: bool = False) -> Column[int]:
    return Column(name, BigInteger, nullable=nullable)


installation = Table(
    "installation",
    metadata,
    Column("id", Integer, primary_key=True),  # always 1
    Column("signing_key", String(128), nullable=False),
    _at("created_at_ms"),
)

projects = Table(
    "projects",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("name", String(128), nullable=False),
    _at("created_at_ms"),
)

keys = Table(
    "keys",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("project_id", ForeignKey("projects.id"), nullable=False),
    Column("scope", String(16), nullable=False),
    Column("name", String(128), nullable=False),
    Column("prefix", String(16), nullable=False),
    Column("secret_sha256", String(64), nullable=False, unique=True),
    _at("created_at_ms"),
    _at("revoked_at_ms", nullable=True),
    _at("last_used_at_ms", nullable=True),
    Index("ix_keys_project", "project_id", "created_at_ms"),
)

project_secrets = Table(
    "project_secrets",
    metadata,
    Column("project_id", ForeignKey("projects.id"), primary_key=True),
    Column("name", String(64), primary_key=True),
    Column("sealed", Text, nullable=False),  # encrypted; the key is in no table
    _at("created_at_ms"),
    _at("changed_at_ms"),
)

nodes = Table(
    "nodes",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("project_id", ForeignKey("projects.id"), nullable=False),
    Column("machine_id", String(128), nullable=False),
    Column("name", String(128), nullable=False),
    Column("fleet", String(128), nullable=False),
    Column("pid", Integer),
    Column("engine_pid", Integer),
    Column("device", String(128), nullable=False, server_default=""),
    Column("vram_bytes", BigInteger),
    Column("price_micro_usd_per_hour", BigInteger, nullable=False, server_default="0"),
    Column("kinds", sa.JSON, nullable=False),
    Column("held_models", sa.JSON, nullable=False),
    Column("versions", sa.JSON, nullable=False),
    Column("draining", Boolean, nullable=False, server_default=sa.false()),
    _at("first_seen_at_ms"),
    _at("last_seen_at_ms"),
    Index("ix_nodes_seen", "last_seen_at_ms"),
)

strikes = Table(
    "strikes",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("machine_id", String(128), nullable=False),
    Column("attempt_id", ForeignKey("attempts.id"), nullable=False, unique=True),
    Column("reason", String(32), nullable=False),
    _at("at_ms"),
    Index("ix_strikes_machine", "machine_id", "at_ms"),
)

blobs = Table(
    "blobs",
    metadata,
    Column("project_id", ForeignKey("projects.id"), primary_key=True),
    Column("sha256", String(64), primary_key=True),
    Column("size_bytes", BigInteger, nullable=False),
    Column("key", String(512), nullable=False, unique=True),
    _at("created_at_ms"),
    Column("inspection", sa.JSON),  # what the picture inspector said of these bytes, once asked
    _at("looked_at_ms", nullable=True),  # when the server last looked because somebody doubted them
    _at("lost_at_ms", nullable=True),  # when it found that storage has them no more, or others
    Index("ix_blobs_created", "created_at_ms"),
)

uploads = Table(
    "uploads",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("project_id", ForeignKey("projects.id"), nullable=False),
    Column("attempt_id", ForeignKey("attempts.id")),  # None: asked for by a user
    Column("sha256", String(64), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("key", String(512), nullable=False, unique=True),
    Column("multipart_id", String(1024)),
    _at("created_at_ms"),
    _at("completed_at_ms", nullable=True),
    Index("ix_uploads_created", "created_at_ms"),
)

datasets = Table(
    "datasets",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("project_id", ForeignKey("projects.id"), primary_key=True),
    Column("labels", sa.JSON, nullable=False),
    Column("notes", sa.JSON, nullable=False),
    Column("picture_count", Integer, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    _at("created_at_ms"),
    Index("ix_datasets_project", "project_id", "created_at_ms", "id"),
)

dataset_items = Table(
    "dataset_items",
    metadata,
    Column("dataset_id", String(64), primary_key=True),
    Column("project_id", String(40), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("sha256", String(64), nullable=False),
    Column("name", String(255), nullable=False),
    Column("caption", Text),
    Column("repeats", Integer, nullable=False, server_default="1"),
    sa.ForeignKeyConstraint(["dataset_id", "project_id"], ["datasets.id", "datasets.project_id"]),
    sa.ForeignKeyConstraint(["project_id", "sha256"], ["blobs.project_id", "blobs.sha256"]),
    Index("ix_dataset_items_blob", "project_id", "sha256"),
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("project_id", ForeignKey("projects.id"), nullable=False),
    Column("kind", String(32), nullable=False),
    Column("name", String(128), nullable=False),
    Column("state", String(16), nullable=False),
    Column("spec", sa.JSON, nullable=False),
    Column("model_key", String(2048), nullable=False, server_default=""),
    Column("priority", Integer, nullable=False),
    Column("interrupted", Boolean, nullable=False, server_default=sa.false()),
    Column("labels", sa.JSON, nullable=False),
    Column("total_steps", BigInteger),
    Column("retry_of", String(40)),
    Column("attempt_count", Integer, nullable=False, server_default="0"),
    Column("attempt_id", String(40)),  # the present or latest attempt
    Column("fruitless", Integer, nullable=False, server_default="0"),  # unannounced ends in a row without new steps
    Column("step", BigInteger, nullable=False, server_default="0"),
    Column("committed_step", BigInteger, nullable=False, server_default="0"),
    Column("phase", String(64), nullable=False, server_default=""),
    Column("error", Text),
    Column("faults", sa.JSON, nullable=False),
    Column("result", sa.JSON, nullable=False),
    _at("created_at_ms"),
    _at("started_at_ms", nullable=True),
    _at("ended_at_ms", nullable=True),
    _at("deadline_at_ms", nullable=True),
    Index("ix_jobs_project", "project_id", "created_at_ms", "id"),
    # The claim walks these two in order; tests hold the planner to them.
    Index(
        "ix_jobs_queue",
        "kind",
        sa.text("interrupted DESC"),
        sa.text("priority DESC"),
        "created_at_ms",
        "id",
        sqlite_where=sa.text("state = 'queued'"),
        postgresql_where=sa.text("state = 'queued'"),
    ),
    Index(
        "ix_jobs_queue_model",
        "kind",
        "model_key",
        sa.text("interrupted DESC"),
        sa.text("priority DESC"),
        "created_at_ms",
        "id",
        sqlite_where=sa.text("state = 'queued'"),
        postgresql_where=sa.text("state = 'queued'"),
    ),
    Index(
        "ix_jobs_deadline",
        "deadline_at_ms",
        sqlite_where=sa.text("state IN ('queued', 'running') AND deadline_at_ms IS NOT NULL"),
        postgresql_where=sa.text("state IN ('queued', 'running') AND deadline_at_ms IS NOT NULL"),
    ),
)

job_inputs = Table(  # files that a job reads besides its datasets, by the part that they play
    "job_inputs",
    metadata,
    Column("job_id", ForeignKey("jobs.id"), primary_key=True),
    Column("role", String(32), primary_key=True),
    Column("project_id", String(40), nullable=False),
    Column("sha256", String(64), nullable=False),
    sa.ForeignKeyConstraint(["project_id", "sha256"], ["blobs.project_id", "blobs.sha256"]),
    Index("ix_job_inputs_blob", "project_id", "sha256"),
)

bans = Table(
    "bans",
    metadata,
    Column("job_id", ForeignKey("jobs.id"), primary_key=True),
    Column("machine_id", String(128), primary_key=True),
    Column("reason", String(32), nullable=False),
    _at("at_ms"),
)

attempts = Table(
    "attempts",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("job_id", ForeignKey("jobs.id"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("node_id", String(64), nullable=False),
    Column("machine_id", String(128), nullable=False),
    Column("node_name", String(128), nullable=False),
    Column("request_id", String(64), nullable=False),
    Column("price_micro_usd_per_hour", BigInteger, nullable=False),
    _at("started_at_ms"),
    _at("first_step_at_ms", nullable=True),
    _at("renewed_at_ms"),
    _at("lease_expires_at_ms"),
    _at("ended_at_ms", nullable=True),
    Column("lapsed", Boolean, nullable=False, server_default=sa.false()),
    Column("reason", String(32)),
    Column("message", Text),
    Column("exit_code", Integer),
    Column("log_tail", Text),
    Column("start_step", BigInteger, nullable=False, server_default="0"),
    Column("last_step", BigInteger, nullable=False, server_default="0"),
    Column("committed_step", BigInteger, nullable=False, server_default="0"),
    Column("phase", String(64), nullable=False, server_default=""),
    Column("order", String(16), nullable=False, server_default="continue"),
    Index("uq_attempts_job_number", "job_id", "number", unique=True),
    Index("uq_attempts_request", "node_id", "request_id", unique=True),
    Index(
        "ix_attempts_live_lease",
        "lease_expires_at_ms",
        sqlite_where=sa.text("ended_at_ms IS NULL"),
        postgresql_where=sa.text("ended_at_ms IS NULL"),
    ),
    Index(
        "ix_attempts_live_node",
        "node_id",
        sqlite_where=sa.text("ended_at_ms IS NULL"),
        postgresql_where=sa.text("ended_at_ms IS NULL"),
    ),
    # At most one attempt of a job is alive: the database says so too.
    Index(
        "uq_attempts_live_job",
        "job_id",
        unique=True,
        sqlite_where=sa.text("ended_at_ms IS NULL"),
        postgresql_where=sa.text("ended_at_ms IS NULL"),
    ),
    Index(
        "ix_attempts_ended",
        "ended_at_ms",
        sqlite_where=sa.text("ended_at_ms IS NOT NULL"),
        postgresql_where=sa.text("ended_at_ms IS NOT NULL"),
    ),
)

ledger = Table(
    "ledger",
    metadata,
    Column("attempt_id", ForeignKey("attempts.id"), primary_key=True),
    Column("seq", Integer, primary_key=True),  # an attempt that lapsed and came back has more than one interval
    Column("project_id", ForeignKey("projects.id"), nullable=False),
    Column("job_id", ForeignKey("jobs.id"), nullable=False),
    _at("from_ms"),
    _at("to_ms"),
    Column("price_micro_usd_per_hour", BigInteger, nullable=False),
    Column("amount_micro_usd", BigInteger, nullable=False),
    Index("ix_ledger_job", "job_id"),
    Index("ix_ledger_project", "project_id", "from_ms"),
)

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
    _at("created_at_ms"),
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
    _at("created_at_ms"),
    sa.ForeignKeyConstraint(["project_id", "sha256"], ["blobs.project_id", "blobs.sha256"]),
    Index("ix_artifacts_blob", "project_id", "sha256"),
)

caches = Table(
    "caches",
    metadata,
    Column("project_id", String(40), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("sha256", String(64), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    _at("created_at_ms"),
    _at("used_at_ms"),
    sa.ForeignKeyConstraint(["project_id", "sha256"], ["blobs.project_id", "blobs.sha256"]),
    Index("ix_caches_blob", "project_id", "sha256"),
)

events = Table(
    "events",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("project_id", ForeignKey("projects.id"), nullable=False),
    Column("job_id", ForeignKey("jobs.id"), nullable=False),
    Column("type", String(64), nullable=False),
    Column("attempt_number", Integer),
    Column("data", sa.JSON, nullable=False),
    _at("at_ms"),
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

logs = Table(
    "logs",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("job_id", ForeignKey("jobs.id"), nullable=False),
    Column("attempt_number", Integer, nullable=False),
    Column("number", BigInteger, nullable=False),  # line number within the attempt
    Column("line", Text, nullable=False),
    _at("at_ms"),
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
    _at("at_ms"),
)

idempotency = Table(
    "idempotency",
    metadata,
    Column("project_id", ForeignKey("projects.id"), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("route", String(128), primary_key=True),
    Column("request_sha256", String(64), nullable=False),
    Column("job_id", String(40), nullable=False),
    _at("created_at_ms"),
    Index("ix_idempotency_created", "created_at_ms"),
)
