"""Add failed starts: of an instance, and of a node's process that has not asked for work yet."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

COLUMNS: dict[str, tuple[sa.Column[Any], ...]] = {
    "nodes": (sa.Column("start", sa.String(16), server_default="", nullable=False),),
    "instances": (
        sa.Column("restarts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("began_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("failed_starts", sa.Integer(), server_default="0", nullable=False),
    ),
}


def upgrade() -> None:
    """Forward only: a backup is the way back."""
    for table, columns in COLUMNS.items():
        for column in columns:
            op.add_column(table, column)
