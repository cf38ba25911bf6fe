"""The schema of the first databases that are still upgraded. `store/database/migrate.py` refuses older ones."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = None
branch_labels = None
depends_on = None

_BIG = sa.BigInteger()
# SQLite numbers rows by itself only in a column of type INTEGER.
_IDENTITY = _BIG.with_variant(sa.Integer(), "sqlite")

_QUEUED = "state = 'queued' AND only_machine_id IS NULL"
_JOINT = f"{_QUEUED} AND joint_key IS NOT NULL"
_PINNED = "state = 'queued' AND only_machine_id IS NOT NULL"
_TURN = "(state = 'queued' OR started_at_ms IS NOT NULL) AND only_machine_id IS NULL"
_STARTED = "started_at_ms IS NOT NULL AND only_machine_id IS NULL"
_ORDER = "interrupted DESC, priority DESC, turn, id"
_OPEN = "state IN ('queued', 'running', 'paused')"

_REFERENCES = {
    "attempt": ("attempt_id", "attempts.id"),
    "blob": ("project_id sha256", "blobs.project_id blobs.sha256"),
    "companion": ("companion_id", "attempts.id"),
    "dataset": ("dataset_id project_id", "datasets.id datasets.project_id"),
    "job": ("job_id", "jobs.id"),
    "project": ("project_id", "projects.id"),
}


def upgrade() -> None:
    """Create all tables and indexes. There is no downgrade: a backup is the way back."""
    _projects()
    _datasets()
    _jobs()
    _nodes()
    _attempts()
    _results()
    _indexes()


def _columns(kind: Any, names: str, *, nullable: bool = False, default: Any = None) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, nullable=nullable, server_default=default) for name in names.split()]


def _keys(primary: str, *references: str) -> list[sa.Constraint]:
    pairs = [_REFERENCES[name] for name in references]
    foreign = [sa.ForeignKeyConstraint(columns.split(), targets.split()) for columns, targets in pairs]
    return [*foreign, sa.PrimaryKeyConstraint(*primary.split())]


def _index(name: str, table: str, columns: str, where: str | None = None) -> None:
    condition = None if where is None else sa.text(where)
    keys = [sa.text(column) if " " in column else column for column in columns.split(", ")]
    unique = name.startswith("uq_")
    op.create_index(name, table, keys, unique=unique, sqlite_where=condition, postgresql_where=condition)


def _projects() -> None:
    op.create_table(
        "installation",
        *_columns(sa.Integer(), "id"),
        *_columns(sa.String(128), "signing_key"),
        *_columns(_BIG, "created_at_ms"),
        *_keys("id"),
    )
    op.create_table(
        "projects",
        *_columns(sa.String(40), "id"),
        *_columns(sa.String(128), "name"),
        *_columns(_BIG, "created_at_ms"),
        *_columns(_BIG, "budget_micro_usd budget_warned_at_ms", nullable=True),
        *_keys("id"),
    )
    op.create_table(
        "project_secrets",
        *_columns(sa.String(40), "project_id"),
        *_columns(sa.String(64), "name"),
        *_columns(sa.Text(), "sealed"),
        *_columns(_BIG, "created_at_ms changed_at_ms"),
        *_keys("project_id name", "project"),
    )
    op.create_table(
        "keys",
        *_columns(sa.String(40), "id project_id"),
        *_columns(sa.String(16), "scope prefix"),
        *_columns(sa.String(128), "name"),
        *_columns(sa.String(64), "secret_sha256"),
        *_columns(_BIG, "created_at_ms"),
        *_columns(_BIG, "revoked_at_ms last_used_at_ms", nullable=True),
        *_keys("id", "project"),
        sa.UniqueConstraint("secret_sha256"),
    )


def _datasets() -> None:
    op.create_table(
        "blobs",
        *_columns(sa.String(40), "project_id"),
        *_columns(sa.String(64), "sha256"),
        *_columns(_BIG, "size_bytes created_at_ms"),
        *_columns(sa.String(512), "key"),
        *_columns(sa.JSON(), "inspection", nullable=True),
        *_columns(_BIG, "looked_at_ms lost_at_ms", nullable=True),
        *_keys("project_id sha256", "project"),
        sa.UniqueConstraint("key"),
    )
    op.create_table(
        "datasets",
        *_columns(sa.String(64), "id"),
        *_columns(sa.String(40), "project_id"),
        *_columns(sa.JSON(), "labels notes"),
        *_columns(sa.Integer(), "picture_count"),
        *_columns(_BIG, "size_bytes created_at_ms"),
        *_keys("id project_id", "project"),
    )
    op.create_table(
        "dataset_items",
        *_columns(sa.String(64), "dataset_id sha256"),
        *_columns(sa.String(40), "project_id"),
        *_columns(sa.Integer(), "position"),
        *_columns(sa.String(255), "name"),
        *_columns(sa.Text(), "caption", nullable=True),
        *_columns(sa.Integer(), "repeats", default="1"),
        *_keys("dataset_id project_id position", "dataset", "blob"),
    )
    op.create_table(
        "caches",
        *_columns(sa.String(40), "project_id"),
        *_columns(sa.String(255), "key"),
        *_columns(sa.String(64), "sha256"),
        *_columns(_BIG, "size_bytes created_at_ms used_at_ms"),
        *_keys("project_id key", "blob"),
    )
    op.create_table(
        "idempotency",
        *_columns(sa.String(40), "project_id job_id"),
        *_columns(sa.String(255), "key"),
        *_columns(sa.String(128), "route"),
        *_columns(sa.String(64), "request_sha256"),
        *_columns(_BIG, "created_at_ms"),
        *_keys("project_id key route", "project"),
    )


def _jobs() -> None:
    op.create_table(
        "jobs",
        *_columns(sa.String(40), "id project_id"),
        *_columns(sa.String(32), "kind"),
        *_columns(sa.String(128), "name"),
        *_columns(sa.String(16), "state"),
        *_columns(sa.JSON(), "spec labels faults result"),
        *_columns(sa.String(2048), "model_key", default=""),
        *_columns(sa.Integer(), "priority"),
        *_columns(sa.Boolean(), "interrupted", default=sa.false()),
        *_columns(
            _BIG,
            "total_steps started_at_ms ended_at_ms deadline_at_ms budget_micro_usd budget_warned_at_ms",
            nullable=True,
        ),
        *_columns(sa.String(40), "retry_of attempt_id", nullable=True),
        *_columns(sa.Integer(), "attempt_count fruitless", default="0"),
        *_columns(_BIG, "step committed_step min_vram_bytes turn reserved_micro_usd", default="0"),
        *_columns(sa.String(64), "phase shape_key", default=""),
        *_columns(sa.Text(), "error", nullable=True),
        *_columns(_BIG, "created_at_ms"),
        *_columns(sa.String(64), "joint_key", nullable=True),
        *_columns(sa.String(128), "only_machine_id", nullable=True),
        *_columns(sa.String(16), "paused_by", nullable=True),
        *_keys("id", "project"),
    )
    op.create_table(
        "job_inputs",
        *_columns(sa.String(40), "job_id project_id"),
        *_columns(sa.String(32), "role"),
        *_columns(sa.String(64), "sha256"),
        *_keys("job_id role", "job", "blob"),
    )


def _nodes() -> None:
    op.create_table(
        "nodes",
        *_columns(sa.String(64), "id"),
        *_columns(sa.String(40), "project_id"),
        *_columns(sa.String(128), "machine_id name fleet"),
        *_columns(sa.Integer(), "pid engine_pid", nullable=True),
        *_columns(sa.String(128), "device", default=""),
        *_columns(_BIG, "vram_bytes", nullable=True),
        *_columns(_BIG, "price_micro_usd_per_hour", default="0"),
        *_columns(sa.JSON(), "kinds held_models versions"),
        *_columns(sa.Boolean(), "draining", default=sa.false()),
        *_columns(_BIG, "first_seen_at_ms last_seen_at_ms"),
        *_columns(sa.String(128), "instance_id", nullable=True),
        *_columns(sa.Integer(), "places", default="1"),
        *_columns(sa.JSON(), "checks", default="{}"),
        *_keys("id", "project"),
    )
    op.create_table(
        "bans",
        *_columns(sa.String(40), "job_id"),
        *_columns(sa.String(128), "machine_id"),
        *_columns(sa.String(32), "reason"),
        *_columns(_BIG, "at_ms"),
        *_keys("job_id machine_id", "job"),
    )
    op.create_table(
        "fleets",
        *_columns(sa.String(128), "name"),
        *_columns(sa.String(32), "driver"),
        *_columns(sa.Integer(), "desired", default="0"),
        *_columns(sa.JSON(), "plan", default="{}"),
        *_columns(sa.Text(), "trouble unlisted shortage", default=""),
        *_columns(sa.Integer(), "told", nullable=True),
        *_columns(
            _BIG,
            "price_micro_usd_per_hour needed_at_ms changed_at_ms examined_at_ms roll_since_ms quiet_until_ms",
            nullable=True,
        ),
        *_columns(_BIG, "seen_at_ms"),
        *_columns(sa.JSON(), "outdated", default="[]"),
        *_keys("name"),
    )
    op.create_table(
        "instances",
        *_columns(sa.String(128), "fleet id name"),
        *_columns(sa.String(128), "machine_id", nullable=True),
        *_columns(sa.String(16), "state"),
        *_columns(_BIG, "price_micro_usd_per_hour", default="0"),
        *_columns(_BIG, "first_listed_at_ms last_listed_at_ms"),
        *_columns(_BIG, "running_at_ms leaving_at_ms ended_at_ms gone_at_ms drained_at_ms", nullable=True),
        *_columns(sa.Text(), "leaving_reason trouble", default=""),
        *_columns(sa.Boolean(), "outdated renewing", default=sa.false()),
        *_keys("fleet id"),
    )
    op.create_table(
        "machines",
        *_columns(sa.String(128), "machine_id"),
        *_columns(sa.String(32), "kind"),
        *_columns(sa.String(16), "state"),
        *_columns(sa.Text(), "reason", default=""),
        *_columns(_BIG, "since_ms scored_at_ms"),
        *_columns(sa.Float(), "strikes", default="0"),
        *_columns(sa.Integer(), "quota"),
        *_columns(sa.Integer(), "successes_in_a_row quarantines quarantined_times", default="0"),
        *_columns(sa.JSON(), "recent_failures", default="[]"),
        *_columns(sa.String(40), "canary_job_id", nullable=True),
        *_columns(sa.Boolean(), "proven by_hand", default=sa.false()),
        *_keys("machine_id kind"),
    )
    op.create_table(
        "reallocations",
        sa.Column("id", _IDENTITY, autoincrement=True, nullable=False),
        *_columns(sa.String(128), "fleet instance_id"),
        *_columns(sa.String(128), "machine_id", nullable=True),
        *_columns(sa.Text(), "reason"),
        *_columns(_BIG, "at_ms"),
        *_keys("id"),
    )


def _attempts() -> None:
    op.create_table(
        "attempts",
        *_columns(sa.String(40), "id job_id"),
        *_columns(sa.Integer(), "number"),
        *_columns(sa.String(64), "node_id request_id"),
        *_columns(sa.String(128), "machine_id node_name"),
        *_columns(_BIG, "price_micro_usd_per_hour started_at_ms renewed_at_ms lease_expires_at_ms"),
        *_columns(
            _BIG, "first_step_at_ms ended_at_ms ordered_at_ms first_step stepped_to stepped_at_ms", nullable=True
        ),
        *_columns(sa.Boolean(), "lapsed shared_fault", default=sa.false()),
        *_columns(sa.String(32), "reason order_reason", nullable=True),
        *_columns(sa.Text(), "message log_tail", nullable=True),
        *_columns(sa.Integer(), "exit_code", nullable=True),
        *_columns(_BIG, "start_step last_step committed_step", default="0"),
        *_columns(sa.String(64), "phase", default=""),
        *_columns(sa.String(16), "order", default="continue"),
        *_keys("id", "job"),
    )
    op.create_table(
        "companions",
        *_columns(sa.String(40), "attempt_id companion_id"),
        *_keys("attempt_id companion_id", "attempt", "companion"),
    )
    op.create_table(
        "strikes",
        sa.Column("id", _IDENTITY, autoincrement=True, nullable=False),
        *_columns(sa.String(128), "machine_id"),
        *_columns(sa.String(40), "attempt_id"),
        *_columns(sa.String(32), "reason"),
        *_columns(_BIG, "at_ms"),
        *_keys("id", "attempt"),
        sa.UniqueConstraint("attempt_id"),
    )
    op.create_table(
        "ledger",
        *_columns(sa.String(40), "attempt_id project_id job_id"),
        *_columns(sa.Integer(), "seq"),
        *_columns(_BIG, "from_ms to_ms price_micro_usd_per_hour amount_micro_usd"),
        *_keys("attempt_id seq", "attempt", "job", "project"),
    )
    op.create_table(
        "uploads",
        *_columns(sa.String(40), "id project_id"),
        *_columns(sa.String(40), "attempt_id", nullable=True),
        *_columns(sa.String(64), "sha256"),
        *_columns(_BIG, "size_bytes created_at_ms"),
        *_columns(sa.String(512), "key"),
        *_columns(sa.String(1024), "multipart_id", nullable=True),
        *_columns(_BIG, "completed_at_ms", nullable=True),
        *_keys("id", "attempt", "project"),
        sa.UniqueConstraint("key"),
    )


def _results() -> None:
    op.create_table(
        "checkpoints",
        *_columns(sa.String(40), "job_id project_id"),
        *_columns(_BIG, "step size_bytes created_at_ms"),
        *_columns(sa.Integer(), "attempt_number"),
        *_columns(sa.String(64), "sha256"),
        *_columns(sa.Boolean(), "rejected", default=sa.false()),
        *_columns(sa.Integer(), "doubted_by", nullable=True),
        *_keys("job_id step", "job", "blob"),
    )
    op.create_table(
        "artifacts",
        *_columns(sa.String(40), "job_id attempt_id project_id"),
        *_columns(sa.String(255), "name"),
        *_columns(sa.String(64), "sha256"),
        *_columns(_BIG, "size_bytes created_at_ms"),
        *_columns(sa.String(128), "media_type"),
        *_keys("job_id name", "attempt", "job", "blob"),
    )
    op.create_table(
        "events",
        sa.Column("id", _IDENTITY, autoincrement=True, nullable=False),
        *_columns(sa.String(40), "project_id job_id"),
        *_columns(sa.String(64), "type"),
        *_columns(sa.Integer(), "attempt_number", nullable=True),
        *_columns(sa.JSON(), "data"),
        *_columns(_BIG, "at_ms"),
        *_columns(sa.String(64), "notice_id", nullable=True),
        *_keys("id", "job", "project"),
    )
    op.create_table(
        "logs",
        sa.Column("id", _IDENTITY, autoincrement=True, nullable=False),
        *_columns(sa.String(40), "job_id"),
        *_columns(sa.Integer(), "attempt_number"),
        *_columns(_BIG, "number at_ms"),
        *_columns(sa.Text(), "line"),
        *_keys("id", "job"),
    )
    op.create_table(
        "metrics",
        *_columns(sa.String(40), "job_id"),
        *_columns(_BIG, "step at_ms"),
        *_columns(sa.Integer(), "attempt_number"),
        *_columns(sa.JSON(), "values"),
        *_keys("job_id step", "job"),
    )


def _indexes() -> None:
    _index("ix_blobs_created", "blobs", "created_at_ms")
    _index("ix_datasets_project", "datasets", "project_id, created_at_ms, id")
    _index("ix_idempotency_created", "idempotency", "created_at_ms")
    _index("ix_jobs_project", "jobs", "project_id, created_at_ms, id")
    _index("ix_keys_project", "keys", "project_id, created_at_ms")
    _index("ix_nodes_seen", "nodes", "last_seen_at_ms")
    _index("uq_attempts_job_number", "attempts", "job_id, number")
    _index("uq_attempts_request", "attempts", "node_id, request_id")
    _index("ix_caches_blob", "caches", "project_id, sha256")
    _index("ix_checkpoints_blob", "checkpoints", "project_id, sha256")
    _index("ix_dataset_items_blob", "dataset_items", "project_id, sha256")
    _index("ix_events_job", "events", "job_id, id")
    _index("ix_logs_job", "logs", "job_id, id")
    _index("uq_logs_line", "logs", "job_id, attempt_number, number")
    _index("ix_artifacts_blob", "artifacts", "project_id, sha256")
    _index("ix_ledger_job", "ledger", "job_id")
    _index("ix_ledger_project", "ledger", "project_id, from_ms")
    _index("ix_strikes_machine", "strikes", "machine_id, at_ms")
    _index("ix_uploads_created", "uploads", "created_at_ms")
    _index("ix_job_inputs_blob", "job_inputs", "project_id, sha256")
    _index("ix_nodes_instance", "nodes", "fleet, instance_id")
    _index("ix_attempts_machine", "attempts", "machine_id, started_at_ms")
    _index("ix_instances_present", "instances", "fleet, gone_at_ms")
    _index("ix_instances_machine", "instances", "machine_id")
    _index("ix_machines_state", "machines", "state")
    _index("ix_machines_canary", "machines", "canary_job_id")
    _index("ix_reallocations_fleet", "reallocations", "fleet, at_ms")
    _index("ix_attempts_ended", "attempts", "ended_at_ms", "ended_at_ms IS NOT NULL")
    _index("ix_attempts_live_lease", "attempts", "lease_expires_at_ms", "ended_at_ms IS NULL")
    _index("ix_attempts_live_node", "attempts", "node_id", "ended_at_ms IS NULL")
    _index("uq_attempts_live_job", "attempts", "job_id", "ended_at_ms IS NULL")
    _index("uq_events_notice", "events", "job_id, attempt_number, notice_id", "notice_id IS NOT NULL")
    _index("ix_jobs_deadline", "jobs", "deadline_at_ms", f"{_OPEN} AND deadline_at_ms IS NOT NULL")
    _index("ix_jobs_reserved", "jobs", "project_id, reserved_micro_usd", f"{_OPEN} AND reserved_micro_usd > 0")
    _index("ix_jobs_paused", "jobs", "project_id, paused_by", "state = 'paused'")
    _index("ix_jobs_queue", "jobs", f"kind, {_ORDER}, min_vram_bytes", _QUEUED)
    _index("ix_jobs_queue_model", "jobs", f"kind, model_key, {_ORDER}, min_vram_bytes", _QUEUED)
    _index(
        "ix_jobs_demand", "jobs", "min_vram_bytes, kind, project_id, created_at_ms, state, only_machine_id", _QUEUED
    )
    _index("ix_jobs_queue_joint", "jobs", f"kind, joint_key, {_ORDER}, min_vram_bytes", _JOINT)
    _index("ix_jobs_pinned", "jobs", f"only_machine_id, kind, {_ORDER}", _PINNED)
    _index("ix_jobs_project_turn", "jobs", "project_id, kind, priority, turn", _TURN)
    _index("ix_jobs_handed_out", "jobs", "kind, priority, started_at_ms, turn", _STARTED)
