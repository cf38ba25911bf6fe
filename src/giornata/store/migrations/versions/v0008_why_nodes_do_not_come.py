"""Why nodes do not come; settings that instances do not have yet; providers that want to be left alone."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

COLUMNS = {
    "fleets": (
        sa.Column("unlisted", sa.Text(), server_default="", nullable=False),
        sa.Column("shortage", sa.Text(), server_default="", nullable=False),
        sa.Column("outdated", sa.JSON(), server_default="[]", nullable=False),
        sa.Column("examined_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("roll_since_ms", sa.BigInteger(), nullable=True),
        sa.Column("quiet_until_ms", sa.BigInteger(), nullable=True),
    ),
    "instances": (
        sa.Column("trouble", sa.Text(), server_default="", nullable=False),
        sa.Column("drained_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("outdated", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("renewing", sa.Boolean(), server_default=sa.false(), nullable=False),
    ),
}


def upgrade() -> None:
    """Forward only: a backup is the way back."""
    for table, columns in COLUMNS.items():
        for column in columns:
            op.add_column(table, column)
