"""Replay audits; jobs whose attempts another project pays for, and jobs whose result an audit has put into doubt."""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

OPEN = sa.text("decided_at_ms IS NULL")


def upgrade() -> None:
    """Forward only: a backup is the way back."""
    op.add_column("jobs", sa.Column("billed_to", sa.String(40), nullable=True))
    op.add_column("jobs", sa.Column("suspect", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.create_table(
        "audits",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("project_id", sa.String(length=40), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("attempt_id", sa.String(length=40), nullable=False),
        sa.Column("attempt_number", sa.Integer(), nullable=False),
        sa.Column("machine_id", sa.String(length=128), nullable=False),
        sa.Column("fleet", sa.String(length=128), nullable=False),
        sa.Column("device", sa.String(length=128), nullable=False),
        sa.Column("versions", sa.JSON(), nullable=False),
        sa.Column("from_step", sa.BigInteger(), nullable=False),
        sa.Column("to_step", sa.BigInteger(), nullable=False),
        sa.Column("claimed_sha256", sa.String(length=64), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("message", sa.Text(), nullable=False, server_default=""),
        sa.Column("runs", sa.JSON(), nullable=False),
        sa.Column("guilty_machine_id", sa.String(length=128), nullable=True),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("decided_at_ms", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_audits_job_id")),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.id"], name=op.f("fk_audits_attempt_id")),
        sa.ForeignKeyConstraint(
            ["project_id", "sha256"], ["blobs.project_id", "blobs.sha256"], name=op.f("fk_audits_project_id_sha256")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audits")),
    )
    op.create_index("ix_audits_job", "audits", ["job_id", "to_step"])
    op.create_index("ix_audits_machine", "audits", ["machine_id", "created_at_ms"])
    op.create_index("ix_audits_guilty", "audits", ["guilty_machine_id"])
    op.create_index("ix_audits_blob", "audits", ["project_id", "sha256"])
    op.create_index("ix_audits_open", "audits", ["created_at_ms"], sqlite_where=OPEN, postgresql_where=OPEN)
