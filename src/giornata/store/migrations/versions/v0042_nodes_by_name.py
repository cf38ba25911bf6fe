"""An index of nodes by machine and name. PostgreSQL builds it beside claims."""

from alembic import op

revision = "0042"
down_revision = "0041"
branch_labels = None
depends_on = None

NAME, COLUMNS = "ix_nodes_name", ["name", "machine_id", "first_seen_at_ms"]


def upgrade() -> None:
    """Forward only: a backup is the way back."""
    if op.get_bind().dialect.name != "postgresql":
        op.create_index(NAME, "nodes", COLUMNS)
        return
    with op.get_context().autocommit_block():
        # A build that was broken off leaves an index that serves nobody.
        op.drop_index(NAME, "nodes", if_exists=True, postgresql_concurrently=True)
        op.create_index(NAME, "nodes", COLUMNS, postgresql_concurrently=True)
