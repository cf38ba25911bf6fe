"""Tables of an older revision, filled with rows of made-up values: what migrations have to work on."""

from collections.abc import Mapping
from types import MappingProxyType

import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from giornata.store.database import migrate as migrating

FIRST = "0020"
"""Revision from which on migrations are looked at: earlier ones ran before there was anything to hold up."""
GROWING = ("jobs", "attempts", "events", "pictures", "ledger", "uploads", "metrics")
NOTHING: Mapping[str, str] = MappingProxyType({})
VALUES: dict[type[sa.types.TypeEngine[object]], str] = {
    sa.Boolean: "false",
    sa.JSON: "'{}'",
    sa.SmallInteger: "i % 30000",
    sa.Integer: "i",
    sa.Float: "i",
    sa.String: "i::text",
}


def config_on(connection: sa.Connection) -> Config:
    """The configuration of the migrations, for this connection."""
    config = migrating._config()
    config.attributes["connection"] = connection
    return config


def fill_revision(
    connection: sa.Connection,
    rows: int,
    *,
    tables: tuple[str, ...] | None = None,
    small: frozenset[str] = frozenset(),
) -> None:
    """Bring an empty PostgreSQL to FIRST, and put so many rows into these tables, by default all but the small."""
    connection.execute(sa.text("SET statement_timeout = 0"))
    command.upgrade(config_on(connection), FIRST)
    known = sa.MetaData()
    known.reflect(connection)
    connection.execute(sa.text("SET session_replication_role = replica"))  # no foreign keys
    for table in known.tables.values():
        if table.name not in small and (tables is None or table.name in tables):
            insert_rows(connection, table, rows)
            connection.execute(sa.text(f"ANALYZE {table.name}"))


def insert_rows(
    connection: sa.Connection, table: sa.Table, rows: int, *, first: int = 1, fixed: Mapping[str, str] = NOTHING
) -> None:
    """Insert rows with the numbers from `first` on: another value for each row, where the type has so many, and not
    `fixed`.
    """
    columns = [column for column in table.columns if column.computed is None]
    values = {f'"{column.name}"': value_of(column) for column in columns}
    values |= {f'"{name}"': f"'{value}'" for name, value in fixed.items() if name in table.c}
    names, made = ", ".join(values), ", ".join(values.values())
    series = f"generate_series({first}, {first + rows - 1}) AS i"
    connection.execute(sa.text(f"INSERT INTO {table.name} ({names}) SELECT {made} FROM {series}"))


def value_of(column: sa.Column[object]) -> str:
    """An expression of the column's type for row i."""
    return next(value for kind, value in VALUES.items() if isinstance(column.type, kind))
