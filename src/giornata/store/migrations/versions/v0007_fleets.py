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
    "attempts": (
        sa.Column("order_reason", sa.String(length=32), nullable=True),
        sa.Column("first_step", sa.BigInteger(), nullable=True),
        sa.Column("stepped_to", sa.BigInteger(), nullable=True),
        sa.Column("stepped_at_ms", sa.BigInteger(), nullable=True),
    ),
    "projects": (
        sa.Column("budget_micro_usd", sa.BigInteger(), nullable=True),
        sa.Column("budget_warned_at_ms", sa.BigInteger(), nullable=True),
    ),
}


def upgrade() -> None:
    """Forward only: a backup is the way back."""
    for table, columns in COLUMNS.items():
        for column in columns:
            op.add_column(table, column)
    op.create_index("ix_nodes_instance", "nodes", ["fleet", "instance_id"])
    op.create_index("ix_attempts_machine", "attempts", ["machine_id", "started_at_ms"])
    _fleets()
    _instances()
    _machines()
    _reallocations()


def _fleets() -> None:
    op.create_table(
        "fleets",
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("driver", sa.String(length=32), nullable=False),
        sa.Column("desired", sa.Integer(), server_default="0", nullable=False),
        sa.Column("plan", sa.JSON(), server_default="{}", nullable=False),
        sa.Column("trouble", sa.Text(), server_default="", nullable=False),
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
        sa.Column("proven", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("quarantines", sa.Integer(), server_default="0", nullable=False),
        sa.Column("quarantined_times", sa.Integer(), server_default="0", nullable=False),
        sa.Column("by_hand", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.PrimaryKeyConstraint("machine_id", "kind", name=op.f("pk_machines")),
    )
    op.create_index("ix_machines_state", "machines", ["state"])
    op.create_index("ix_machines_canary", "machines", ["canary_job_id"])


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
