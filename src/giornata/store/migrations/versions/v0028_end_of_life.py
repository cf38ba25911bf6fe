"""Retention of projects, pins, and what was deleted."""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
IS_OPEN = sa.text("finished_at_ms IS NULL")


def upgrade() -> None:
    """Forward only: a backup is the way back. Jobs are locked first and projects last, as requests do."""
    op.add_column("jobs", sa.Column("deleted_at_ms", sa.BigInteger(), nullable=True))
    for table in ("jobs", "datasets", "checkpoints"):
        op.add_column(table, sa.Column("pinned", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.create_table(
        "deletions",
        sa.Column("id", ROW_ID, autoincrement=True, nullable=False),
        sa.Column("project_id", sa.String(length=40), nullable=False),
        sa.Column("what", sa.String(length=16), nullable=False),
        sa.Column("target_id", sa.String(length=64), nullable=False),
        sa.Column("asked_by", sa.String(length=40), nullable=False),
        sa.Column("asked_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("finished_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("objects", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False, server_default="0"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deletions")),
    )
    op.create_index("ix_deletions_open", "deletions", ["id"], sqlite_where=IS_OPEN, postgresql_where=IS_OPEN)
    op.add_column("projects", sa.Column("retention", sa.JSON(), nullable=False, server_default="{}"))
    op.add_column("projects", sa.Column("deleted_at_ms", sa.BigInteger(), nullable=True))
