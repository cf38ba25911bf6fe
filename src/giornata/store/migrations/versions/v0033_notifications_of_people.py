"""Webhooks may belong to a person, who is told of the own jobs."""

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward only: a backup is the way back."""
    op.add_column("webhooks", sa.Column("user_id", sa.String(40), nullable=True))
