"""A picture of a dataset may have a resolution of its own."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward only: a backup is the way back."""
    op.add_column("dataset_items", sa.Column("resolution", sa.Integer(), nullable=True))
