"""An operator sets for each project how many pictures a dataset may have."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward only: a backup is the way back."""
    op.add_column("projects", sa.Column("max_pictures", sa.Integer(), nullable=True))
