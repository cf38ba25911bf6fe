"""The maker of each project, secret, webhook, upload and tag of a picture. Of rows that are there it is not known."""

import sqlalchemy as sa
from alembic import op

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward only: a backup is the way back."""
    for table in ("projects", "project_secrets", "webhooks", "uploads", "picture_tags"):
        op.add_column(table, sa.Column("created_by", sa.String(length=40), nullable=True))
