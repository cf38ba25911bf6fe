"""Indexes by which pages list jobs. PostgreSQL builds them while claims go on, in a migration of their own."""

from alembic import op
from sqlalchemy import text

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None

PINNED = {"sqlite": text("pinned = 1"), "postgresql": text("pinned")}


def upgrade() -> None:
    """Forward only: a backup is the way back."""
    if op.get_bind().dialect.name != "postgresql":
        op.create_index("ix_jobs_project_kind", "jobs", ["project_id", "kind", "created_at_ms", "id"])
        op.create_index("ix_jobs_project_pinned", "jobs", ["project_id", "id"], sqlite_where=PINNED["sqlite"])
        return
    with op.get_context().autocommit_block():
        # A build that was broken off leaves an index that serves nobody.
        for name in ("ix_jobs_project_kind", "ix_jobs_project_pinned"):
            op.drop_index(name, "jobs", if_exists=True, postgresql_concurrently=True)
        columns = ["project_id", "kind", "created_at_ms", "id"]
        op.create_index("ix_jobs_project_kind", "jobs", columns, postgresql_concurrently=True)
        columns, pinned = ["project_id", "id"], PINNED["postgresql"]
        op.create_index(
            "ix_jobs_project_pinned", "jobs", columns, postgresql_where=pinned, postgresql_concurrently=True
        )
