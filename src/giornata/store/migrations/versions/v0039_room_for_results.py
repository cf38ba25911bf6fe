"""Leave room in a page of pictures for the lease and the result of each of them.

On PostgreSQL only: it keeps the version before a change. Pages that are full stay so, and their pictures are drawn as
before.
"""

from alembic import op

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Forward only: a backup is the way back."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER TABLE pictures SET (fillfactor = 40)")
