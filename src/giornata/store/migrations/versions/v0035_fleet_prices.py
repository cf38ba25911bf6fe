"""The prices of a fleet, a row for each change. The history begins with the price that is known now."""

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward only: a backup is the way back."""
    op.create_table(
        "fleet_prices",
        sa.Column("fleet", sa.String(length=128), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("price_micro_usd_per_hour", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("fleet", "at_ms", name=op.f("pk_fleet_prices")),
    )
    # A row for each fleet of the settings, which are a few.
    op.execute(
        "INSERT INTO fleet_prices (fleet, at_ms, price_micro_usd_per_hour)"
        " SELECT name, seen_at_ms, price_micro_usd_per_hour FROM fleets WHERE price_micro_usd_per_hour IS NOT NULL"
    )
