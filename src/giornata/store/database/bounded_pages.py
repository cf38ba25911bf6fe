"""Read pages that end early: by the number of their rows, or by the bytes that their rows hold, whichever comes
first.

One statement reads a page. Its inner part reads keys and sizes of the rows, and the database adds up the sizes.
The columns themselves are read only of the rows that fit.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, TypeVar

import sqlalchemy as sa

from giornata.control.ports.user_queries.records import Rows

_R = TypeVar("_R")
_SIZE, _UP_TO, _FOUND = "size_bytes_of_row", "bytes_up_to_row", "rows_found"


def size_of(*columns: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
    """Return the characters of the columns as text; JSON is stored as ASCII, so that they are bytes."""
    sizes = [sa.func.coalesce(sa.func.length(sa.cast(column, sa.Text)), 0) for column in columns]
    total: sa.ColumnElement[int] = sizes[0]
    for size in sizes[1:]:
        total += size
    return total


def bounded(
    table: sa.Table,
    columns: Sequence[sa.ColumnElement[Any]],
    wanted: sa.Select[Any],
    *,
    order: Sequence[sa.Column[Any]],
    newest_first: bool = False,
    size: sa.ColumnElement[int],
    limit: int | sa.BindParameter[int],
    most_bytes: int | sa.BindParameter[int],
) -> sa.Select[Any]:
    """Select `columns` of the first rows that `wanted` finds in this `order`; it selects the primary key and what
    orders.

    At most `limit` rows, and none after the row that reaches `most_bytes`. The first row always comes.
    """
    keys = list(table.primary_key)
    ordered = [column.desc() if newest_first else column for column in order]
    found = wanted.add_columns(size.label(_SIZE)).order_by(*ordered).limit(limit + 1).subquery("found")
    place = [found.c[column.name].desc() if newest_first else found.c[column.name] for column in order]
    summed = sa.select(
        *(found.c[key.name] for key in keys),
        found.c[_SIZE],
        sa.func.sum(found.c[_SIZE]).over(order_by=place, rows=(None, 0)).label(_UP_TO),
        sa.func.count().over().label(_FOUND),
    ).subquery("summed")
    return (
        sa.select(*columns, summed.c[_FOUND])
        .join(summed, sa.and_(*(table.c[key.name] == summed.c[key.name] for key in keys)))
        .where(summed.c[_UP_TO] - summed.c[_SIZE] < most_bytes)
        .order_by(*ordered)
        .limit(limit)
    )


def rows_of(record: type[_R], found: Sequence[Any], **left_out: Any) -> Rows[_R]:
    """Return the page that `bounded` read, with the values of columns that were not asked for."""
    names = {field.name for field in fields(record)}  # type: ignore[arg-type]
    items = [
        record(**left_out, **{name: value for name, value in row._mapping.items() if name in names}) for row in found
    ]
    return Rows(items=items, more=is_more_behind(found))


def is_more_behind(found: Sequence[Any]) -> bool:
    """Return True when there are rows behind the page that `bounded` read."""
    return bool(found) and found[0]._mapping[_FOUND] > len(found)
