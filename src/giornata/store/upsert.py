"""Inserts that give way to the row which is there already."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite


def insert_unless_there(dialect_name: str, table: sa.Table, **values: Any) -> sa.Executable:
    """INSERT … ON CONFLICT DO NOTHING RETURNING the primary key: no row comes back when one is in the way.

    On PostgreSQL it waits for a transaction that is just inserting the same key, and inserts if that one rolls back.
    """
    key = list(table.primary_key.columns)
    if dialect_name == "postgresql":
        return postgresql.insert(table).values(**values).on_conflict_do_nothing().returning(*key)
    return sqlite.insert(table).values(**values).on_conflict_do_nothing().returning(*key)
