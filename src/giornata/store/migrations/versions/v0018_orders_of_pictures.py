"""Add orders of pictures, their pictures, and attempts that hold a lease of pictures instead of a job."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

OF_PICTURES = sa.text("(CASE WHEN pictures > 0 THEN id ELSE '' END)")


def upgrade() -> None:
    """Forward only: a backup is the way back."""
    op.add_column("attempts", sa.Column("pictures", sa.Integer(), server_default="0", nullable=False))
    for name in ("uq_attempts_job_number", "uq_attempts_live_job"):
        op.drop_index(name, "attempts")
    op.create_index("uq_attempts_job_number", "attempts", ["job_id", "number", OF_PICTURES], unique=True)
    _index("uq_attempts_live_job", "attempts", ["job_id", OF_PICTURES], "ended_at_ms IS NULL", unique=True)
    _orders()
    _pictures()
    op.create_table(
        "picture_failures",
        sa.Column("order_id", sa.String(40), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("machine_id", sa.String(128), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("order_id", "number", "machine_id", name=op.f("pk_picture_failures")),
    )


def _orders() -> None:
    op.create_table(
        "picture_orders",
        sa.Column("order_id", sa.String(40), nullable=False),
        sa.Column("project_id", sa.String(40), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("pictures", sa.Integer(), nullable=False),
        sa.Column("ended", sa.Integer(), server_default="0", nullable=False),
        sa.Column("told", sa.Integer(), server_default="0", nullable=False),
        sa.Column("told_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("ends_turn", sa.BigInteger(), nullable=False),
        sa.Column("is_open", sa.Boolean(), server_default=sa.true(), nullable=False),
        sa.ForeignKeyConstraint(["order_id"], ["jobs.id"], name=op.f("fk_picture_orders_order_id")),
        sa.PrimaryKeyConstraint("order_id", name=op.f("pk_picture_orders")),
    )
    op.create_index("ix_picture_orders_turn", "picture_orders", ["priority", "ends_turn"])
    op.create_index("ix_picture_orders_project_turn", "picture_orders", ["project_id", "priority", "ends_turn"])
    _index("ix_picture_orders_open", "picture_orders", ["project_id"], "is_open")
    _index("ix_picture_orders_untold", "picture_orders", ["told_at_ms"], "told < ended")


def _pictures() -> None:
    op.create_table(
        "pictures",
        sa.Column("order_id", sa.String(40), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("project_id", sa.String(40), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("batch_key", sa.String(32), nullable=False),
        sa.Column("base_key", sa.String(32), nullable=False),
        sa.Column("turn", sa.BigInteger(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("differs", sa.JSON(), nullable=False),
        sa.Column("pixel_steps", sa.BigInteger(), nullable=False),
        sa.Column("min_vram_bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("together", sa.SmallInteger(), nullable=False),
        sa.Column("tries", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("fruitless", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("lease", sa.String(40), nullable=True),
        sa.Column("sha256", sa.String(64), nullable=True),
        sa.Column("size_bytes", sa.BigInteger(), nullable=True),
        sa.Column("flags", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("place", sa.Integer(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("order_id", "number", name=op.f("pk_pictures")),
    )
    for name, keys in (("queue", []), ("queue_base", ["base_key"]), ("queue_batch", ["batch_key"])):
        _index(f"ix_pictures_{name}", "pictures", [*keys, sa.text("priority DESC"), "turn"], "state = 'queued'")
    _index("ix_pictures_lease", "pictures", ["lease"], "lease IS NOT NULL")


def _index(name: str, table: str, columns: list[str | sa.TextClause], where: str, *, unique: bool = False) -> None:
    op.create_index(name, table, columns, unique=unique, sqlite_where=sa.text(where), postgresql_where=sa.text(where))
