"""The maker of each project, secret, webhook, upload and tag of a picture; attempts and money of imported jobs.

Of rows that are there the maker is not known, and no imported job has attempts or money.
"""

import sqlalchemy as sa
from alembic import op

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward only: a backup is the way back."""
    # Jobs first and projects last, as requests lock them: the other way round both would wait for each other.
    op.add_column("jobs", sa.Column("imported_cost_micro_usd", sa.BigInteger(), nullable=True))
    for table in ("uploads", "picture_tags", "project_secrets", "webhooks", "projects"):
        op.add_column(table, sa.Column("created_by", sa.String(length=40), nullable=True))
    op.create_table(
        "imported_attempts",
        # Without a foreign key: it would lock the table of jobs against claims.
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("node_id", sa.String(length=128), nullable=False),
        sa.Column("machine_id", sa.String(length=128), nullable=False),
        sa.Column("node_name", sa.String(length=128), nullable=False),
        sa.Column("started_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("first_step_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("lease_expires_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("ended_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("lapsed", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.String(length=32), nullable=True),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("start_step", sa.BigInteger(), nullable=False),
        sa.Column("last_step", sa.BigInteger(), nullable=False),
        sa.Column("committed_step", sa.BigInteger(), nullable=False),
        sa.Column("phase", sa.String(length=64), nullable=False),
        sa.Column("billed_ms", sa.BigInteger(), nullable=False),
        sa.Column("amount_micro_usd", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "number", name=op.f("pk_imported_attempts")),
    )
