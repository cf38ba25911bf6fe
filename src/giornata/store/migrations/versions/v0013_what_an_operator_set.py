"""Add an operator's pause and limits of a fleet, and since when a fleet has nodes that no job waits for."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

COLUMNS = (
    sa.Column("awaited_at_ms", sa.BigInteger(), nullable=True),
    sa.Column("paused_at_ms", sa.BigInteger(), nullable=True),
    sa.Column("limits", sa.JSON(), server_default="{}", nullable=False),
)


def upgrade() -> None:
    """Forward only: a backup is the way back."""
    for column in COLUMNS:
        op.add_column("fleets", column)
