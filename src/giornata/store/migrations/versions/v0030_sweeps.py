"""Training jobs belong to a sweep, which is a job too."""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

BELONGS = sa.text("parent_id IS NOT NULL")
OPEN = sa.text("kind = 'sweep' AND state IN ('running', 'paused')")


def upgrade() -> None:
    """Forward only: a backup is the way back."""
    op.add_column("jobs", sa.Column("parent_id", sa.String(40), nullable=True))
    op.create_index("ix_jobs_parent", "jobs", ["parent_id"], sqlite_where=BELONGS, postgresql_where=BELONGS)
    op.create_index("ix_jobs_sweeps", "jobs", ["id"], sqlite_where=OPEN, postgresql_where=OPEN)
