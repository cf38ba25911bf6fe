"""The requests with a limit a second that each server lets through, a row for each server.

The table is UNLOGGED on PostgreSQL: its rows are replaced each second, and no commit of them waits for a disk or a
standby. Servers of the version before neither read nor write it.
"""

import sqlalchemy as sa
from alembic import op

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward only: a backup is the way back."""
    op.create_table(
        "request_counts",
        sa.Column("server_id", sa.String(length=40), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("counts", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("server_id", name=op.f("pk_request_counts")),
        prefixes=["UNLOGGED"] if op.get_bind().dialect.name == "postgresql" else [],
    )
