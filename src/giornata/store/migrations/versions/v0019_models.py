"""A registry of the model files that pictures are drawn with."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward only: a backup is the way back."""
    op.create_table(
        "models",
        sa.Column("project_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=512), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=True),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("family", sa.String(length=16), nullable=True),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("source", sa.String(length=16), nullable=False),
        sa.Column("reference", sa.String(length=512), nullable=False),
        sa.Column("pinned", sa.Boolean(), nullable=False),
        sa.Column("shared", sa.Boolean(), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("used_at_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_models_project_id")),
        sa.ForeignKeyConstraint(
            ["project_id", "sha256"], ["blobs.project_id", "blobs.sha256"], name=op.f("fk_models_project_id_sha256")
        ),
        sa.PrimaryKeyConstraint("project_id", "name", name=op.f("pk_models")),
    )
    op.create_index("ix_models_blob", "models", ["project_id", "sha256"])
    op.create_index("ix_models_project", "models", ["project_id", "created_at_ms", "name"])
