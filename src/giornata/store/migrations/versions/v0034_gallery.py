"""Words by which orders are found, and stars and tags of pictures."""

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward only: a backup is the way back. Orders of before are found by their date, not by their words."""
    op.create_table(
        "order_terms",
        sa.Column("order_id", sa.String(40), primary_key=True),
        sa.Column("term", sa.String(80), primary_key=True),
        sa.Column("project_id", sa.String(40), nullable=False),
        sa.Column("ordered_at_ms", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_order_terms_found", "order_terms", ["project_id", "term", "ordered_at_ms", "order_id"])
    op.create_table(
        "picture_tags",
        sa.Column("order_id", sa.String(40), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("tag", sa.String(40), primary_key=True),
        sa.Column("project_id", sa.String(40), nullable=False),
        sa.Column("ordered_at_ms", sa.BigInteger, nullable=False),
    )
    found = ["project_id", "tag", "ordered_at_ms", "order_id", "number"]
    op.create_index("ix_picture_tags_found", "picture_tags", found)
    # A row for each order, in a table that nobody uses yet. Orders and jobs are only read.
    op.execute(
        "INSERT INTO order_terms (order_id, term, project_id, ordered_at_ms) "
        "SELECT jobs.id, '', jobs.project_id, jobs.created_at_ms "
        "FROM picture_orders JOIN jobs ON jobs.id = picture_orders.order_id "
        "WHERE jobs.kind IN ('generate', 'grid') AND jobs.deleted_at_ms IS NULL"
    )
