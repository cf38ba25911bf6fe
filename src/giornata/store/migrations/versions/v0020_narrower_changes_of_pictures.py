"""Index queued pictures by a column that a result does not change, and leave room in pages for changed rows.

On PostgreSQL only: SQLite writes pages, and each index that a statement really changes.
"""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

QUEUES: tuple[tuple[str, list[str]], ...] = (
    ("queue", []),
    ("queue_base", ["base_key"]),
    ("queue_batch", ["batch_key"]),
)


def upgrade() -> None:
    """Forward only: a backup is the way back."""
    if op.get_bind().dialect.name != "postgresql":
        return
    is_queued = sa.Computed("state = 'queued'", persisted=True)
    op.add_column("pictures", sa.Column("is_queued", sa.Boolean(), is_queued, nullable=True))
    for name, keys in QUEUES:
        op.drop_index(f"ix_pictures_{name}", "pictures")
        columns: list[str | sa.TextClause] = [*keys, sa.text("priority DESC"), "turn"]
        op.create_index(f"ix_pictures_{name}", "pictures", columns, postgresql_where=sa.text("is_queued"))
    op.execute("ALTER TABLE pictures SET (fillfactor = 70)")
