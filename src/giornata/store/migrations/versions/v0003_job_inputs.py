"""Files that a job reads besides its datasets."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward only: a backup is the way back."""
    op.create_table(
        "job_inputs",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("role", sa.String(length=32), nullable=False),
        sa.Column("project_id", sa.String(length=40), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"]),
        sa.ForeignKeyConstraint(["project_id", "sha256"], ["blobs.project_id", "blobs.sha256"]),
        sa.PrimaryKeyConstraint("job_id", "role"),
    )
    op.create_index("ix_job_inputs_blob", "job_inputs", ["project_id", "sha256"])
