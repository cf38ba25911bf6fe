"""The billed time of each fleet by its use, a row for each hour of the last day."""

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None

NUMBERS = ("startup_ms", "useful_ms", "lost_ms", "at_risk_ms", "idle_ms", "billed_micro_usd")


def upgrade() -> None:
    """Forward only: a backup is the way back."""
    op.create_table(
        "fleet_time",
        sa.Column("fleet", sa.String(length=128), nullable=False),
        sa.Column("hour_ms", sa.BigInteger(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in NUMBERS),
        sa.PrimaryKeyConstraint("fleet", "hour_ms", name=op.f("pk_fleet_time")),
    )
