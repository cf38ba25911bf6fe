"""What is written when attempts begin: attempts, bills and events.

On PostgreSQL this is one statement. SQLite knows no INSERT within a statement; there each table has one statement.
"""

import functools
from collections.abc import Sequence
from operator import attrgetter

import sqlalchemy as sa

from giornata.control.ports.work_rows import AttemptRow, Beginning
from giornata.store.row_list import ROWS, bind_each, row_list, types_of
from giornata.store.schema import attempts, events, ledger

_ATTEMPT = (*AttemptRow.__slots__, "request_id")
_BILL = {  # columns of the ledger, by what an attempt calls them
    "attempt_id": "id",
    "project_id": "project_id",
    "job_id": "job_id",
    "from_ms": "started_at_ms",
    "to_ms": "started_at_ms",
    "price_micro_usd_per_hour": "price_micro_usd_per_hour",
}
_EVENT = {
    "project_id": "project_id",
    "job_id": "job_id",
    "type": "type",
    "attempt_number": "number",
    "data": "data",
    "at_ms": "started_at_ms",
}
_values = attrgetter(*AttemptRow.__slots__)
_NEW_BILL = {"seq": 0, "amount_micro_usd": 0}
_TYPES = {**types_of(attempts, *_ATTEMPT), **types_of(events, "project_id", "type", "data")}
_INSERTS = {table.name: sa.insert(table).inline() for table in (attempts, ledger, events)}


def begin_each(connection: sa.Connection, dialect_name: str, begun: Sequence[Beginning]) -> None:
    """See `giornata.control.ports.work_store.Attempts`."""
    rows = [
        {
            **dict(zip(AttemptRow.__slots__, _values(each.attempt), strict=True)),
            "request_id": each.request_id,
            "project_id": each.event.project_id,
            "type": each.event.type,
            "data": each.event.data,
        }
        for each in begun
    ]
    if dialect_name == "postgresql":
        connection.execute(_all_at_once(), {ROWS: rows})
        return
    bind_each(connection, _INSERTS["attempts"], _ATTEMPT, rows)
    bills = [{**{name: row[of] for name, of in _BILL.items()}, **_NEW_BILL} for row in rows]
    bind_each(connection, _INSERTS["ledger"], (*_BILL, *_NEW_BILL), bills)
    events_of_them = [{name: row[of] for name, of in _EVENT.items()} for row in rows]
    bind_each(connection, _INSERTS["events"], tuple(_EVENT), events_of_them)


@functools.cache
def _all_at_once() -> sa.Insert:
    """The order in which the parts run is PostgreSQL's; foreign keys are looked at when all have run."""
    given = sa.select(row_list("postgresql", _TYPES)).cte("given_rows")
    attempt = sa.select(*(given.c[name] for name in _ATTEMPT))
    bill = [given.c[name] for name in _BILL.values()] + [
        sa.literal_column(str(value)) for value in _NEW_BILL.values()
    ]
    parts = (
        sa.insert(attempts).from_select(_ATTEMPT, attempt, include_defaults=False),
        sa.insert(ledger).from_select([*_BILL, *_NEW_BILL], sa.select(*bill), include_defaults=False),
    )
    event = sa.select(*(given.c[name] for name in _EVENT.values()))
    last = sa.insert(events).from_select(list(_EVENT), event, include_defaults=False).inline()
    return last.add_cte(*(part.cte(f"into_{part.table.name}") for part in parts))
