"""Model files that nodes say they have."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward only: a backup is the way back."""
    op.create_table(
        "node_models",
        sa.Column("node_id", sa.String(length=64), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=True),
        sa.Column("held", sa.JSON(), nullable=False),
        sa.Column("fetching", sa.String(length=32), nullable=True),
        sa.ForeignKeyConstraint(["node_id"], ["nodes.id"], name=op.f("fk_node_models_node_id")),
        sa.PrimaryKeyConstraint("node_id", name=op.f("pk_node_models")),
    )
