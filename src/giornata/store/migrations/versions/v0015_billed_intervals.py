"""Keep the bills of instances by interval, so that a new price does not change what was billed before."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

# Of instances that were there before, the latest price is all that is known.
KNOWN = """
    INSERT INTO billed_intervals (fleet, instance_id, seq, from_ms, to_ms, price_micro_usd_per_hour)
    SELECT fleet, id, 0, running_at_ms,
           CASE WHEN gone_at_ms IS NULL AND state <> 'running' THEN last_listed_at_ms ELSE gone_at_ms END,
           price_micro_usd_per_hour
    FROM instances WHERE running_at_ms IS NOT NULL
"""


def upgrade() -> None:
    """Forward only: a backup is the way back."""
    op.add_column("instances", sa.Column("offer", sa.String(length=128), server_default="", nullable=False))
    op.add_column("fleets", sa.Column("told_at_ms", sa.BigInteger(), nullable=True))
    op.create_table(
        "billed_intervals",
        sa.Column("fleet", sa.String(length=128), nullable=False),
        sa.Column("instance_id", sa.String(length=128), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("from_ms", sa.BigInteger(), nullable=False),
        sa.Column("to_ms", sa.BigInteger(), nullable=True),
        sa.Column("price_micro_usd_per_hour", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("fleet", "instance_id", "seq", name=op.f("pk_billed_intervals")),
    )
    op.execute(KNOWN)
