"""Add a column for the sealed signing key."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward only: a backup is the way back. The server seals the key that is there at its next start."""
    op.add_column("installation", sa.Column("sealed_signing_key", sa.Text(), nullable=True))
