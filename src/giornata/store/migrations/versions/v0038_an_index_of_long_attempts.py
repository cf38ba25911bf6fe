"""An index of the attempts that lived for more than a day, for costs by day. PostgreSQL builds it beside claims."""

from alembic import op
from sqlalchemy import text

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None

NAME, LONG = "ix_attempts_long", text("ended_at_ms - started_at_ms > 86400000")


def upgrade() -> None:
    """Forward only: a backup is the way back."""
    if op.get_bind().dialect.name != "postgresql":
        op.create_index(NAME, "attempts", ["ended_at_ms"], sqlite_where=LONG)
        return
    with op.get_context().autocommit_block():
        # A build that was broken off leaves an index that serves nobody.
        op.drop_index(NAME, "attempts", if_exists=True, postgresql_concurrently=True)
        op.create_index(NAME, "attempts", ["ended_at_ms"], postgresql_where=LONG, postgresql_concurrently=True)
