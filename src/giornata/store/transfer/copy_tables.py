"""Copy tables by batches in the order of their keys. Each batch is committed with a cursor behind its last row."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DataError, IntegrityError

from giornata.domain.errors import Fault, InvalidInput
from giornata.store.database.transfer_marks import marks
from giornata.store.schema import metadata

BATCH_ROWS = 1000
TABLES: tuple[sa.Table, ...] = tuple(metadata.sorted_tables)
"""All tables, each after those that it refers to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedBatch:
    """One committed batch of a table. `rows` counts those of the table so far."""

    table: str
    rows: int


OnBatch = Callable[[CopiedBatch], None]


def plain(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    """Return the column as it is stored: JSON as its text, so that NULL and null stay apart."""
    return sa.cast(column, sa.Text).label(column.name) if isinstance(column.type, sa.JSON) else column


def copy_tables(source: sa.Connection, target: sa.Engine, *, on_batch: OnBatch) -> int:
    """Copy what the target lacks of each table, and return the number of copied rows.

    Raises InvalidInput for a row that the target refuses.
    """
    return sum(_copy_table(source, target, table, on_batch) for table in TABLES)


def _copy_table(source: sa.Connection, target: sa.Engine, table: sa.Table, on_batch: OnBatch) -> int:
    key = [column.name for column in table.primary_key.columns]
    after, rows_before = _cursor(target, table)
    insert, rows = _insert(table), rows_before
    while batch := source.execute(_batch(table, after)).mappings().all():
        after, rows = [batch[-1][name] for name in key], rows + len(batch)
        try:
            with target.begin() as connection:
                connection.execute(insert, [{_bound(name): value for name, value in row.items()} for row in batch])
                _note_cursor(connection, table, after, rows)
        except (DataError, IntegrityError) as error:
            hint = "PostgreSQL refuses what SQLite has kept: mend the row in the source"
            raise InvalidInput([Fault(where=f"table {table.name}", message=str(error.orig), hint=hint)]) from error
        on_batch(CopiedBatch(table=table.name, rows=rows))
    return rows - rows_before


def _batch(table: sa.Table, after: Sequence[Any] | None) -> sa.Select[Any]:
    key = list(table.primary_key.columns)
    query = sa.select(*map(plain, table.columns)).order_by(*key).limit(BATCH_ROWS)
    return query if after is None else query.where(sa.tuple_(*key) > sa.tuple_(*map(sa.literal, after)))


def _insert(table: sa.Table) -> sa.Insert:
    values: dict[str, Any] = {}
    for column in table.columns:
        is_json = isinstance(column.type, sa.JSON)
        bound = sa.bindparam(_bound(column.name), type_=sa.Text() if is_json else column.type)
        values[column.name] = sa.cast(bound, sa.JSON) if is_json else bound
    return sa.insert(table).values(values)


def _bound(name: str) -> str:
    """Return the name of a parameter. Names of columns are taken in an INSERT."""
    return f"new_{name}"


def _cursor(target: sa.Engine, table: sa.Table) -> tuple[list[Any] | None, int]:
    """Return the key of the last copied row, and the number of rows up to it."""
    with target.connect() as connection:
        said = connection.scalar(sa.select(marks.c.said).where(marks.c.name == _cursor_name(table)))
    if said is None:
        return None, 0
    found = json.loads(said)
    return found["after"], found["rows"]


def _note_cursor(connection: sa.Connection, table: sa.Table, after: Sequence[Any], rows: int) -> None:
    name, said = _cursor_name(table), json.dumps({"after": after, "rows": rows})
    connection.execute(sa.delete(marks).where(marks.c.name == name))
    connection.execute(sa.insert(marks).values(name=name, said=said))


def _cursor_name(table: sa.Table) -> str:
    return f"table:{table.name}"
