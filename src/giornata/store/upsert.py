"""Inserts that give way to the row which is there already."""

from typing import Any

import sqlalchemy as sa

from giornata.store.dialect_insert import insert_for


def insert_unless_there(dialect_name: str, table: sa.Table, **values: Any) -> sa.Executable:
    """INSERT … ON CONFLICT DO NOTHING RETURNING the primary key: no row comes back when one is in the way.

    On PostgreSQL it waits for a transaction that is just inserting the same key, and inserts if that one rolls back.
    """
    statement = insert_for(dialect_name, table).values(**values).on_conflict_do_nothing()
    returning: sa.Executable = statement.returning(*table.primary_key.columns)
    return returning
