"""Indexes of large tables. PostgreSQL builds them while claims go on, which takes a migration of their own."""

from alembic import op
from sqlalchemy import TextClause, text

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

COUNTED = text("state IN ('queued', 'running') AND only_machine_id IS NULL")
OPEN_UPLOAD = text("completed_at_ms IS NULL AND attempt_id IS NULL")
BELONGS = text("parent_id IS NOT NULL")
OPEN_SWEEP = text("kind = 'sweep' AND state IN ('running', 'paused')")
INDEXES: dict[str, tuple[str, list[str], TextClause | None]] = {
    "ix_jobs_counted": ("jobs", ["state", "project_id", "kind"], COUNTED),
    "ix_uploads_open": ("uploads", ["project_id", "size_bytes"], OPEN_UPLOAD),
    "ix_blobs_bytes": ("blobs", ["project_id", "size_bytes"], None),
    "ix_jobs_parent": ("jobs", ["parent_id"], BELONGS),
    "ix_jobs_sweeps": ("jobs", ["id"], OPEN_SWEEP),
}


def upgrade() -> None:
    """Forward only: a backup is the way back."""
    if op.get_bind().dialect.name != "postgresql":
        for name, (table, columns, where) in INDEXES.items():
            op.create_index(name, table, columns, sqlite_where=where)
        return
    with op.get_context().autocommit_block():
        for name, (table, columns, where) in INDEXES.items():
            # A build that was broken off leaves an index that serves nobody.
            op.drop_index(name, table, if_exists=True, postgresql_concurrently=True)
            op.create_index(name, table, columns, postgresql_where=where, postgresql_concurrently=True)
