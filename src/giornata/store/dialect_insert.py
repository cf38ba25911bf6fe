"""INSERT … ON CONFLICT, which both databases know and SQLAlchemy spells twice."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite


def insert_for(dialect_name: str, table: sa.Table) -> Any:
    """The dialect's own insert of `table`; both have `on_conflict_do_nothing` and `on_conflict_do_update`."""
    return postgresql.insert(table) if dialect_name == "postgresql" else sqlite.insert(table)
