"""Training jobs belong to a sweep, which is a job too."""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward only: a backup is the way back."""
    op.add_column("jobs", sa.Column("parent_id", sa.String(40), nullable=True))
