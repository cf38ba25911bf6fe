"""Columns of projects for their quotas."""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward only: a backup is the way back."""
    for name in ("running_jobs", "queued_jobs", "pictures_per_day", "priority"):
        op.add_column("projects", sa.Column(f"max_{name}", sa.Integer(), nullable=True))
    for name in ("requests_per_s", "requests_per_s_per_key"):
        op.add_column("projects", sa.Column(f"max_{name}", sa.Integer(), nullable=True))
    op.add_column("projects", sa.Column("max_stored_bytes", sa.BigInteger(), nullable=True))
    for name in ("base_models", "adapters"):
        op.add_column("projects", sa.Column(f"allowed_{name}", sa.JSON(none_as_null=True), nullable=True))
