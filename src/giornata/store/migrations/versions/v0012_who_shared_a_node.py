"""Drop the table of shared nodes: the times of attempts tell which attempts shared a node."""

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward only: a backup is the way back."""
    op.drop_table("companions")
    op.drop_index("ix_attempts_live_node", "attempts")
    op.create_index("ix_attempts_node", "attempts", ["node_id", "ended_at_ms"])
