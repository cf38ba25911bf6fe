"""Quotas of projects, and the indexes from which their use is counted."""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

OPEN_UPLOAD = sa.text("completed_at_ms IS NULL AND attempt_id IS NULL")
COUNTED = sa.text("state IN ('queued', 'running') AND only_machine_id IS NULL")


def upgrade() -> None:
    """Forward only: a backup is the way back."""
    for name in ("running_jobs", "queued_jobs", "pictures_per_day", "priority"):
        op.add_column("projects", sa.Column(f"max_{name}", sa.Integer(), nullable=True))
    for name in ("requests_per_s", "requests_per_s_per_key"):
        op.add_column("projects", sa.Column(f"max_{name}", sa.Integer(), nullable=True))
    op.add_column("projects", sa.Column("max_stored_bytes", sa.BigInteger(), nullable=True))
    for name in ("base_models", "adapters"):
        op.add_column("projects", sa.Column(f"allowed_{name}", sa.JSON(none_as_null=True), nullable=True))
    _index("ix_jobs_counted", "jobs", ["state", "project_id", "kind"], COUNTED)
    _index("ix_uploads_open", "uploads", ["project_id", "size_bytes"], OPEN_UPLOAD)
    op.create_index("ix_blobs_bytes", "blobs", ["project_id", "size_bytes"])


def _index(name: str, table: str, columns: list[str], where: sa.TextClause) -> None:
    op.create_index(name, table, columns, sqlite_where=where, postgresql_where=where)
