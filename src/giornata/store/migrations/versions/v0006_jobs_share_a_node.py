"""Jobs that may share a batch, attempts that share a node and its price, and faults that nobody can be blamed for."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

QUEUED = sa.text("state = 'queued' AND joint_key IS NOT NULL")


def upgrade() -> None:
    """Forward only: a backup is the way back. Jobs that are there already run alone."""
    op.add_column("jobs", sa.Column("joint_key", sa.String(length=64), nullable=True))
    op.create_index(
        "ix_jobs_queue_joint",
        "jobs",
        ["kind", "joint_key", sa.text("interrupted DESC"), sa.text("priority DESC"), "created_at_ms", "id"],
        sqlite_where=QUEUED,
        postgresql_where=QUEUED,
    )
    op.add_column("attempts", sa.Column("shared_fault", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.create_table(
        "companions",
        sa.Column("attempt_id", sa.String(length=40), nullable=False),
        sa.Column("companion_id", sa.String(length=40), nullable=False),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.id"], name=op.f("fk_companions_attempt_id")),
        sa.ForeignKeyConstraint(["companion_id"], ["attempts.id"], name=op.f("fk_companions_companion_id")),
        sa.PrimaryKeyConstraint("attempt_id", "companion_id", name=op.f("pk_companions")),
    )
