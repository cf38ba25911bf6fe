"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward only: a backup is the way back."""
    op.create_table(
        "installation",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("signing_key", sa.String(length=128), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_installation")),
    )
    op.create_table(
        "projects",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_projects")),
    )
    op.create_table(
        "blobs",
        sa.Column("project_id", sa.String(length=40), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.String(length=512), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("inspection", sa.JSON(), nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_blobs_project_id")),
        sa.PrimaryKeyConstraint("project_id", "sha256", name=op.f("pk_blobs")),
        sa.UniqueConstraint("key", name=op.f("uq_blobs_key")),
    )
    op.create_index("ix_blobs_created", "blobs", ["created_at_ms"], unique=False)
    op.create_table(
        "datasets",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("project_id", sa.String(length=40), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("notes", sa.JSON(), nullable=False),
        sa.Column("picture_count", sa.Integer(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_datasets_project_id")),
        sa.PrimaryKeyConstraint("id", "project_id", name=op.f("pk_datasets")),
    )
    op.create_index("ix_datasets_project", "datasets", ["project_id", "created_at_ms", "id"], unique=False)
    op.create_table(
        "idempotency",
        sa.Column("project_id", sa.String(length=40), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("route", sa.String(length=128), nullable=False),
        sa.Column("request_sha256", sa.String(length=64), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_idempotency_project_id")),
        sa.PrimaryKeyConstraint("project_id", "key", "route", name=op.f("pk_idempotency")),
    )
    op.create_index("ix_idempotency_created", "idempotency", ["created_at_ms"], unique=False)
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("project_id", sa.String(length=40), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("model_key", sa.String(length=2048), server_default="", nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("interrupted", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("total_steps", sa.BigInteger(), nullable=True),
        sa.Column("retry_of", sa.String(length=40), nullable=True),
        sa.Column("attempt_count", sa.Integer(), server_default="0", nullable=False),
        sa.Column("attempt_id", sa.String(length=40), nullable=True),
        sa.Column("fruitless", sa.Integer(), server_default="0", nullable=False),
        sa.Column("step", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("committed_step", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("phase", sa.String(length=64), server_default="", nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("faults", sa.JSON(), nullable=False),
        sa.Column("result", sa.JSON(), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("started_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("ended_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("deadline_at_ms", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_jobs_project_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    op.create_index(
        "ix_jobs_deadline",
        "jobs",
        ["deadline_at_ms"],
        unique=False,
        sqlite_where=sa.text("state IN ('queued', 'running') AND deadline_at_ms IS NOT NULL"),
        postgresql_where=sa.text("state IN ('queued', 'running') AND deadline_at_ms IS NOT NULL"),
    )
    op.create_index("ix_jobs_project", "jobs", ["project_id", "created_at_ms", "id"], unique=False)
    op.create_index(
        "ix_jobs_queue",
        "jobs",
        ["kind", sa.literal_column("interrupted DESC"), sa.literal_column("priority DESC"), "created_at_ms", "id"],
        unique=False,
        sqlite_where=sa.text("state = 'queued'"),
        postgresql_where=sa.text("state = 'queued'"),
    )
    op.create_index(
        "ix_jobs_queue_model",
        "jobs",
        [
            "kind",
            "model_key",
            sa.literal_column("interrupted DESC"),
            sa.literal_column("priority DESC"),
            "created_at_ms",
            "id",
        ],
        unique=False,
        sqlite_where=sa.text("state = 'queued'"),
        postgresql_where=sa.text("state = 'queued'"),
    )
    op.create_table(
        "keys",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("project_id", sa.String(length=40), nullable=False),
        sa.Column("scope", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("prefix", sa.String(length=16), nullable=False),
        sa.Column("secret_sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("revoked_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("last_used_at_ms", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_keys_project_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_keys")),
        sa.UniqueConstraint("secret_sha256", name=op.f("uq_keys_secret_sha256")),
    )
    op.create_index("ix_keys_project", "keys", ["project_id", "created_at_ms"], unique=False)
    op.create_table(
        "nodes",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("project_id", sa.String(length=40), nullable=False),
        sa.Column("machine_id", sa.String(length=128), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("fleet", sa.String(length=128), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=True),
        sa.Column("engine_pid", sa.Integer(), nullable=True),
        sa.Column("device", sa.String(length=128), server_default="", nullable=False),
        sa.Column("vram_bytes", sa.BigInteger(), nullable=True),
        sa.Column("price_micro_usd_per_hour", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("kinds", sa.JSON(), nullable=False),
        sa.Column("held_models", sa.JSON(), nullable=False),
        sa.Column("versions", sa.JSON(), nullable=False),
        sa.Column("draining", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("first_seen_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("last_seen_at_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_nodes_project_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_nodes")),
    )
    op.create_index("ix_nodes_seen", "nodes", ["last_seen_at_ms"], unique=False)
    op.create_table(
        "attempts",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("node_id", sa.String(length=64), nullable=False),
        sa.Column("machine_id", sa.String(length=128), nullable=False),
        sa.Column("node_name", sa.String(length=128), nullable=False),
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("price_micro_usd_per_hour", sa.BigInteger(), nullable=False),
        sa.Column("started_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("first_step_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("renewed_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("lease_expires_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("ended_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("lapsed", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("reason", sa.String(length=32), nullable=True),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("log_tail", sa.Text(), nullable=True),
        sa.Column("start_step", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("last_step", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("committed_step", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("phase", sa.String(length=64), server_default="", nullable=False),
        sa.Column("order", sa.String(length=16), server_default="continue", nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_attempts_job_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attempts")),
    )
    op.create_index(
        "ix_attempts_ended",
        "attempts",
        ["ended_at_ms"],
        unique=False,
        sqlite_where=sa.text("ended_at_ms IS NOT NULL"),
        postgresql_where=sa.text("ended_at_ms IS NOT NULL"),
    )
    op.create_index(
        "ix_attempts_live_lease",
        "attempts",
        ["lease_expires_at_ms"],
        unique=False,
        sqlite_where=sa.text("ended_at_ms IS NULL"),
        postgresql_where=sa.text("ended_at_ms IS NULL"),
    )
    op.create_index(
        "ix_attempts_live_node",
        "attempts",
        ["node_id"],
        unique=False,
        sqlite_where=sa.text("ended_at_ms IS NULL"),
        postgresql_where=sa.text("ended_at_ms IS NULL"),
    )
    op.create_index("uq_attempts_job_number", "attempts", ["job_id", "number"], unique=True)
    op.create_index(
        "uq_attempts_live_job",
        "attempts",
        ["job_id"],
        unique=True,
        sqlite_where=sa.text("ended_at_ms IS NULL"),
        postgresql_where=sa.text("ended_at_ms IS NULL"),
    )
    op.create_index("uq_attempts_request", "attempts", ["node_id", "request_id"], unique=True)
    op.create_table(
        "bans",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("machine_id", sa.String(length=128), nullable=False),
        sa.Column("reason", sa.String(length=32), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_bans_job_id")),
        sa.PrimaryKeyConstraint("job_id", "machine_id", name=op.f("pk_bans")),
    )
    op.create_table(
        "caches",
        sa.Column("project_id", sa.String(length=40), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("used_at_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id", "sha256"], ["blobs.project_id", "blobs.sha256"], name=op.f("fk_caches_project_id_sha256")
        ),
        sa.PrimaryKeyConstraint("project_id", "key", name=op.f("pk_caches")),
    )
    op.create_index("ix_caches_blob", "caches", ["project_id", "sha256"], unique=False)
    op.create_table(
        "checkpoints",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("project_id", sa.String(length=40), nullable=False),
        sa.Column("attempt_number", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("rejected", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_checkpoints_job_id")),
        sa.ForeignKeyConstraint(
            ["project_id", "sha256"],
            ["blobs.project_id", "blobs.sha256"],
            name=op.f("fk_checkpoints_project_id_sha256"),
        ),
        sa.PrimaryKeyConstraint("job_id", "step", name=op.f("pk_checkpoints")),
    )
    op.create_index("ix_checkpoints_blob", "checkpoints", ["project_id", "sha256"], unique=False)
    op.create_table(
        "dataset_items",
        sa.Column("dataset_id", sa.String(length=64), nullable=False),
        sa.Column("project_id", sa.String(length=40), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("caption", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["dataset_id", "project_id"],
            ["datasets.id", "datasets.project_id"],
            name=op.f("fk_dataset_items_dataset_id_project_id"),
        ),
        sa.ForeignKeyConstraint(
            ["project_id", "sha256"],
            ["blobs.project_id", "blobs.sha256"],
            name=op.f("fk_dataset_items_project_id_sha256"),
        ),
        sa.PrimaryKeyConstraint("dataset_id", "project_id", "position", name=op.f("pk_dataset_items")),
    )
    op.create_index("ix_dataset_items_blob", "dataset_items", ["project_id", "sha256"], unique=False)
    op.create_table(
        "events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("project_id", sa.String(length=40), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("type", sa.String(length=64), nullable=False),
        sa.Column("attempt_number", sa.Integer(), nullable=True),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_events_job_id")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_events_project_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    op.create_index("ix_events_job", "events", ["job_id", "id"], unique=False)
    op.create_table(
        "logs",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("attempt_number", sa.Integer(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("line", sa.Text(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_logs_job_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_logs")),
    )
    op.create_index("ix_logs_job", "logs", ["job_id", "id"], unique=False)
    op.create_index("uq_logs_line", "logs", ["job_id", "attempt_number", "number"], unique=True)
    op.create_table(
        "metrics",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("attempt_number", sa.Integer(), nullable=False),
        sa.Column("values", sa.JSON(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_metrics_job_id")),
        sa.PrimaryKeyConstraint("job_id", "step", name=op.f("pk_metrics")),
    )
    op.create_table(
        "artifacts",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("attempt_id", sa.String(length=40), nullable=False),
        sa.Column("project_id", sa.String(length=40), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("media_type", sa.String(length=128), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.id"], name=op.f("fk_artifacts_attempt_id")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_artifacts_job_id")),
        sa.ForeignKeyConstraint(
            ["project_id", "sha256"],
            ["blobs.project_id", "blobs.sha256"],
            name=op.f("fk_artifacts_project_id_sha256"),
        ),
        sa.PrimaryKeyConstraint("job_id", "name", name=op.f("pk_artifacts")),
    )
    op.create_index("ix_artifacts_blob", "artifacts", ["project_id", "sha256"], unique=False)
    op.create_table(
        "ledger",
        sa.Column("attempt_id", sa.String(length=40), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("project_id", sa.String(length=40), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("from_ms", sa.BigInteger(), nullable=False),
        sa.Column("to_ms", sa.BigInteger(), nullable=False),
        sa.Column("price_micro_usd_per_hour", sa.BigInteger(), nullable=False),
        sa.Column("amount_micro_usd", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.id"], name=op.f("fk_ledger_attempt_id")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_ledger_job_id")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_ledger_project_id")),
        sa.PrimaryKeyConstraint("attempt_id", "seq", name=op.f("pk_ledger")),
    )
    op.create_index("ix_ledger_job", "ledger", ["job_id"], unique=False)
    op.create_index("ix_ledger_project", "ledger", ["project_id", "from_ms"], unique=False)
    op.create_table(
        "strikes",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("machine_id", sa.String(length=128), nullable=False),
        sa.Column("attempt_id", sa.String(length=40), nullable=False),
        sa.Column("reason", sa.String(length=32), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.id"], name=op.f("fk_strikes_attempt_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_strikes")),
        sa.UniqueConstraint("attempt_id", name=op.f("uq_strikes_attempt_id")),
    )
    op.create_index("ix_strikes_machine", "strikes", ["machine_id", "at_ms"], unique=False)
    op.create_table(
        "uploads",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("project_id", sa.String(length=40), nullable=False),
        sa.Column("attempt_id", sa.String(length=40), nullable=True),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.String(length=512), nullable=False),
        sa.Column("multipart_id", sa.String(length=1024), nullable=True),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("completed_at_ms", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.id"], name=op.f("fk_uploads_attempt_id")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_uploads_project_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_uploads")),
        sa.UniqueConstraint("key", name=op.f("uq_uploads_key")),
    )
    op.create_index("ix_uploads_created", "uploads", ["created_at_ms"], unique=False)
