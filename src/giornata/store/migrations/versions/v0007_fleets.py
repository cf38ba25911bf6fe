"""Fleets, instances, the health of machines; budgets; what a job needs of a node, and its turn."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

COLUMNS = {
    "nodes": (
        sa.Column("instance_id", sa.String(length=128), nullable=True),
        sa.Column("places", sa.Integer(), server_default="1", nullable=False),
        sa.Column("checks", sa.JSON(), server_default="{}", nullable=False),
    ),
    "jobs": (
        sa.Column("shape_key", sa.String(length=64), server_default="", nullable=False),
        sa.Column("min_vram_bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("only_machine_id", sa.String(length=128), nullable=True),
        sa.Column("turn", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("budget_micro_usd", sa.BigInteger(), nullable=True),
        sa.Column("reserved_micro_usd", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("budget_warned_at_ms", sa.BigInteger(), nullable=True),
    ),
    "attempts": (sa.Column("order_reason", sa.String(length=32), nullable=True),),
    "projects": (
        sa.Column("budget_micro_usd", sa.BigInteger(), nullable=True),
        sa.Column("budget_warned_at_ms", sa.BigInteger(), nullable=True),
    ),
}

PLACE = ("interrupted DESC", "priority DESC", "turn", "id")
FOR_ANYONE = "state = 'queued' AND only_machine_id IS NULL"
INDEXES = {
    "ix_jobs_queue": (("kind", *PLACE, "min_vram_bytes"), FOR_ANYONE),
    "ix_jobs_queue_model": (("kind", "model_key", *PLACE, "min_vram_bytes"), FOR_ANYONE),
    "ix_jobs_queue_joint": (
        ("kind", "joint_key", *PLACE, "min_vram_bytes"),
        f"{FOR_ANYONE} AND joint_key IS NOT NULL",
    ),
    "ix_jobs_pinned": (
        ("only_machine_id", "kind", *PLACE),
        "state = 'queued' AND only_machine_id IS NOT NULL",
    ),
    "ix_jobs_demand": (
        ("min_vram_bytes", "kind", "project_id", "created_at_ms", "state", "only_machine_id"),
        FOR_ANYONE,
    ),
    "ix_jobs_project_turn": (
        ("project_id", "kind", "priority", "turn"),
        "(state = 'queued' OR started_at_ms IS NOT NULL) AND only_machine_id IS NULL",
    ),
    "ix_jobs_handed_out": (
        ("kind", "priority", "started_at_ms", "turn"),
        "started_at_ms IS NOT NULL AND only_machine_id IS NULL",
    ),
}


def upgrade() -> None:
    """Forward only: a backup is the way back."""
    for table, columns in COLUMNS.items():
        for column in columns:
            op.add_column(table, column)
    op.create_index("ix_nodes_instance", "nodes", ["fleet", "instance_id"])
    _queue()
    _fleets()
    _instances()
    _machines()
    _reallocations()


def _queue() -> None:
    # Of each project the oldest is first, the next one second: as if all projects had begun to submit now.
    op.execute(
        "UPDATE jobs SET turn = ranked.turn FROM"
        " (SELECT id, row_number() OVER (PARTITION BY project_id, kind, priority ORDER BY created_at_ms, id) AS turn"
        " FROM jobs WHERE state = 'queued') AS ranked WHERE ranked.id = jobs.id"
    )
    for name in ("ix_jobs_queue", "ix_jobs_queue_model", "ix_jobs_queue_joint"):
        op.drop_index(name, table_name="jobs")
    for name, (columns, where) in INDEXES.items():
        keys = [sa.text(column) for column in columns]
        op.create_index(name, "jobs", keys, sqlite_where=sa.text(where), postgresql_where=sa.text(where))


def _fleets() -> None:
    op.create_table(
        "fleets",
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("driver", sa.String(length=32), nullable=False),
        sa.Column("desired", sa.Integer(), server_default="0", nullable=False),
        sa.Column("plan", sa.JSON(), server_default="{}", nullable=False),
        sa.Column("trouble", sa.Text(), server_default="", nullable=False),
        sa.Column("told", sa.Integer(), nullable=True),
        sa.Column("price_micro_usd_per_hour", sa.BigInteger(), nullable=True),
        sa.Column("needed_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("changed_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("seen_at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_fleets")),
    )


def _instances() -> None:
    op.create_table(
        "instances",
        sa.Column("fleet", sa.String(length=128), nullable=False),
        sa.Column("id", sa.String(length=128), nullable=False),
        sa.Column("machine_id", sa.String(length=128), nullable=True),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("price_micro_usd_per_hour", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("first_listed_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("last_listed_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("running_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("leaving_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("leaving_reason", sa.Text(), server_default="", nullable=False),
        sa.Column("ended_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("gone_at_ms", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("fleet", "id", name=op.f("pk_instances")),
    )
    op.create_index("ix_instances_present", "instances", ["fleet", "gone_at_ms"])
    op.create_index("ix_instances_machine", "instances", ["machine_id"])


def _machines() -> None:
    op.create_table(
        "machines",
        sa.Column("machine_id", sa.String(length=128), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.Column("since_ms", sa.BigInteger(), nullable=False),
        sa.Column("strikes", sa.Float(), server_default="0", nullable=False),
        sa.Column("scored_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("quota", sa.Integer(), nullable=False),
        sa.Column("successes_in_a_row", sa.Integer(), server_default="0", nullable=False),
        sa.Column("recent_failures", sa.JSON(), server_default="[]", nullable=False),
        sa.Column("canary_job_id", sa.String(length=40), nullable=True),
        sa.PrimaryKeyConstraint("machine_id", "kind", name=op.f("pk_machines")),
    )
    op.create_index("ix_machines_state", "machines", ["state"])


def _reallocations() -> None:
    op.create_table(
        "reallocations",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("fleet", sa.String(length=128), nullable=False),
        sa.Column("instance_id", sa.String(length=128), nullable=False),
        sa.Column("machine_id", sa.String(length=128), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reallocations")),
    )
    op.create_index("ix_reallocations_fleet", "reallocations", ["fleet", "at_ms"])
