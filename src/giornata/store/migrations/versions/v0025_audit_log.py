"""The audit log, and the newest row of each of its chains."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
WAITS = sa.text("number IS NULL")


def upgrade() -> None:
    """Forward only: a backup is the way back."""
    op.create_table(
        "audit_log",
        sa.Column("id", ROW_ID, autoincrement=True, nullable=False),
        sa.Column("project_id", sa.String(length=40), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("actor_kind", sa.String(length=16), nullable=False),
        sa.Column("actor", sa.String(length=200), nullable=False),
        sa.Column("key_id", sa.String(length=200), nullable=False),
        sa.Column("address", sa.String(length=64), nullable=False),
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("verb", sa.String(length=48), nullable=False),
        sa.Column("target", sa.String(length=512), nullable=False),
        sa.Column("changes", sa.JSON(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=True),
        sa.Column("previous_sha256", sa.String(length=64), nullable=True),
        sa.Column("sha256", sa.String(length=64), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_log")),
    )
    op.create_index("uq_audit_log_number", "audit_log", ["project_id", "number"], unique=True)
    op.create_index("ix_audit_log_project", "audit_log", ["project_id", "id"])
    op.create_index("ix_audit_log_waits", "audit_log", ["id"], sqlite_where=WAITS, postgresql_where=WAITS)
    op.create_table(
        "audit_log_heads",
        sa.Column("project_id", sa.String(length=40), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("project_id", name=op.f("pk_audit_log_heads")),
    )
