"""A column of projects for the orders that may be open at a time."""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward only: a backup is the way back."""
    op.add_column("projects", sa.Column("max_open_orders", sa.Integer(), nullable=True))
