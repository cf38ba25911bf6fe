"""An operator sets for each project what becomes of pictures that the safety checker takes for unsafe."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward only: a backup is the way back."""
    op.add_column("projects", sa.Column("safety", sa.String(8), nullable=False, server_default="off"))
