"""Move rows in and out of statements: records from rows, inserts that give way, and many rows in one statement.

The text of a statement does not depend on the number of rows. A text that does is compiled, prepared and planned anew
for each number.

On PostgreSQL the rows travel as one JSON value, which the statement reads as a table. That costs the driver as much
for 64 rows as for one, while `executemany` binds and sends each row by itself. SQLite binds a row faster than it
reads one out of JSON, and has no network to save.
"""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from operator import itemgetter
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

# The name of the parameter: a list of objects.
ROWS = "rows"
Rows = Sequence[Mapping[str, Any]]
_LIST = sa.bindparam(ROWS, type_=sa.JSON(), required=False)
_R = TypeVar("_R")


class Queries:
    """A group of statements that run in the transaction of `connection`, which the caller begins and ends."""

    def __init__(self, connection: sa.Connection, dialect_name: str) -> None:
        self._connection, self._dialect_name = connection, dialect_name


def row_list(dialect_name: str, types: Mapping[str, Any]) -> Any:
    """Return the parameter ROWS as a table, in the order of the list. `types` are SQL types by the name of the
    column.

    A column that an object does not have is NULL.
    """
    if dialect_name == "postgresql":
        named = [sa.column(name, type_) for name, type_ in types.items()]
        return sa.func.json_to_recordset(_LIST).table_valued(*named).render_derived(with_types=True)
    each = sa.func.json_each(_LIST).table_valued("value", name="each_given")
    values = [
        sa.type_coerce(sa.func.json_extract(each.c.value, sa.literal_column(f"'$.\"{name}\"'")), type_).label(name)
        for name, type_ in types.items()
    ]
    return sa.select(*values).select_from(each).subquery("given")


def among(dialect_name: str, column: Any, name: str) -> sa.ColumnElement[bool]:
    """Return the condition that the column has one of the values of the parameter `name`, which is a list."""
    if dialect_name == "postgresql":
        listed: sa.ColumnElement[bool] = column == sa.any_(sa.bindparam(name, type_=postgresql.ARRAY(column.type)))
        return listed
    each = sa.func.json_each(sa.bindparam(name, type_=sa.JSON())).table_valued("value", name=f"each_of_{name}")
    inside: sa.ColumnElement[bool] = column.in_(sa.select(each.c.value))
    return inside


def values_of(dialect_name: str, kind: Any, name: str) -> sa.ColumnElement[Any]:
    """Return the column of a table that has a row for each of the values of the parameter `name`, which is a list."""
    if dialect_name == "postgresql":
        listed = sa.func.unnest(sa.bindparam(name, type_=postgresql.ARRAY(kind)))
        return listed.table_valued(sa.column("value", kind), name=f"values_of_{name}").render_derived().c.value
    each = sa.func.json_each(sa.bindparam(name, type_=sa.JSON()))
    return each.table_valued(sa.column("value", kind), name=f"values_of_{name}").c.value


def types_of(table: sa.Table, *names: str) -> dict[str, Any]:
    """Return the types of these columns of a table."""
    return {name: table.c[name].type for name in names}


def _as_it_is(statement: Any) -> Any:
    return statement


def update_rows(connection: sa.Connection, dialect_name: str, table: sa.Table, rows: Rows, **where: Any) -> int:
    """Set columns of the rows with these ids; return how many there were. Each object names `id` and the same
    columns.

    Only rows whose columns are as `where` says are set; None stands for NULL.
    """
    names = tuple(name for name in rows[0] if name != "id")
    statement = _update(dialect_name, table, names, tuple(where.items()))
    return connection.execute(statement, {ROWS: list(rows)}).rowcount


@functools.cache
def _update(dialect_name: str, table: sa.Table, names: tuple[str, ...], where: tuple[tuple[str, Any], ...]) -> Any:
    """Return the update of these columns. The use cases set only a few combinations of columns."""
    given = row_list(dialect_name, types_of(table, "id", *names))
    same = [table.c[name].is_(None) if value is None else table.c[name] == value for name, value in where]
    return sa.update(table).where(table.c.id == given.c.id, *same).values({name: given.c[name] for name in names})


def insert_rows(
    connection: sa.Connection,
    dialect_name: str,
    table: sa.Table,
    rows: Rows,
    settle: Callable[[Any], Any] = _as_it_is,
) -> None:
    """Insert whole rows, which all name the same columns, in their order. `settle` adds what a conflict leads to."""
    statement = _insert(dialect_name, table, tuple(rows[0]), settle)
    if dialect_name == "postgresql":
        connection.execute(statement, {ROWS: list(rows)})
    else:
        bind_each(connection, statement, tuple(rows[0]), rows)


@functools.cache
def _insert(dialect_name: str, table: sa.Table, names: tuple[str, ...], settle: Callable[[Any], Any]) -> Any:
    if dialect_name != "postgresql":
        return settle(insert_for(dialect_name, table)).inline()
    given = row_list(dialect_name, types_of(table, *names))
    some = sa.select(*(given.c[name] for name in names))
    # Inline: the ids that they get are not needed.
    return settle(insert_for(dialect_name, table).from_select(names, some, include_defaults=False)).inline()


def bind_each(connection: sa.Connection, statement: sa.Insert, names: tuple[str, ...], rows: Rows) -> None:
    """Insert the columns `names` into SQLite, without SQLAlchemy's way for each value, which costs more than the
    insert.
    """
    sql, values_of, documents = _compiled(statement, names)
    if documents:
        rows = [{**row, **{name: json.dumps(row[name]) for name in documents}} for row in rows]
    connection.exec_driver_sql(sql, [values_of(row) for row in rows])


@functools.cache
def _compiled(statement: sa.Insert, names: tuple[str, ...]) -> tuple[str, Callable[[Any], Any], frozenset[str]]:
    """Return the text, what takes its parameters out of a row, and the columns of JSON."""
    compiled = statement.compile(dialect=sqlite.dialect(), column_keys=list(names))
    columns = statement.table.c
    documents = frozenset(name for name in names if isinstance(columns[name].type, sa.JSON))
    return str(compiled), itemgetter(*(compiled.positiontup or ())), documents


def insert_for(dialect_name: str, table: sa.Table) -> Any:
    """Return the dialect's own insert of `table`; both have `on_conflict_do_nothing` and `on_conflict_do_update`."""
    return postgresql.insert(table) if dialect_name == "postgresql" else sqlite.insert(table)


def insert_unless_there(dialect_name: str, table: sa.Table, **values: Any) -> sa.Executable:
    """INSERT … ON CONFLICT DO NOTHING RETURNING the primary key: no row comes back when one is in the way.

    On PostgreSQL it waits for a transaction that is just inserting the same key, and inserts if that one rolls back.
    """
    statement = insert_for(dialect_name, table).values(**values).on_conflict_do_nothing()
    returning: sa.Executable = statement.returning(*table.primary_key.columns)
    return returning


def columns(table: sa.Table, record: type[Any], *, but: frozenset[str] = frozenset()) -> list[sa.Column[Any]]:
    """Return the table's columns that the record has fields for, without those named in `but`."""
    return [table.c[field.name] for field in fields(record) if field.name not in but]


def record_of(record: type[_R], row: Any) -> _R:
    """Return the record of a row whose columns have the names of its fields."""
    return record(**row._mapping)
