"""How often an epoch holds a picture."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward only: a backup is the way back."""
    op.add_column("dataset_items", sa.Column("repeats", sa.Integer(), server_default="1", nullable=False))
