"""Add a budget of each project for a calendar month."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward only: a backup is the way back."""
    op.add_column("projects", sa.Column("monthly_budget_micro_usd", sa.BigInteger(), nullable=True))
    op.add_column("projects", sa.Column("monthly_budget_warned_at_ms", sa.BigInteger(), nullable=True))
