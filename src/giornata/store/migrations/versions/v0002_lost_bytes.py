"""Bytes that storage has lost can come again; doubts are remembered; a notice has an id."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward only: a backup is the way back."""
    op.add_column("blobs", sa.Column("looked_at_ms", sa.BigInteger(), nullable=True))
    op.add_column("blobs", sa.Column("lost_at_ms", sa.BigInteger(), nullable=True))
    op.add_column("checkpoints", sa.Column("doubted_by", sa.Integer(), nullable=True))
    op.add_column("events", sa.Column("notice_id", sa.String(length=64), nullable=True))
    op.create_index(
        "uq_events_notice",
        "events",
        ["job_id", "attempt_number", "notice_id"],
        unique=True,
        sqlite_where=sa.text("notice_id IS NOT NULL"),
        postgresql_where=sa.text("notice_id IS NOT NULL"),
    )
