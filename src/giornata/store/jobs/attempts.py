"""Queries for attempts. Every change says WHERE it has not ended: an ended attempt cannot be brought back."""

import functools
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.node_queries import work_store
from giornata.control.ports.node_queries.work_rows import AttemptRow, Before, Beginning, Earlier
from giornata.domain.jobs.reasons import INTERRUPTION, Reason
from giornata.domain.machines.machine_ids import AT
from giornata.store.database.rows import ROWS, Queries, among, bind_each, row_list, types_of, update_rows
from giornata.store.schema import attempts, events, ledger

_COLUMNS = tuple(attempts.c[name] for name in AttemptRow.__slots__)
LIVE = attempts.c.ended_at_ms.is_(None)
# Made once: building a statement costs more than running it.
_BY_ID = sa.select(*_COLUMNS).where(attempts.c.id == sa.bindparam("wanted"))
# A lease of pictures, which names one of its orders, is no attempt at that order.
_LIVE_OF_JOB = sa.select(*_COLUMNS).where(
    attempts.c.job_id == sa.bindparam("wanted"), LIVE, attempts.c.pictures == sa.literal_column("0")
)
_CRASHED = (
    sa.select(*_COLUMNS)
    .where(attempts.c.job_id == sa.bindparam("wanted"))
    .where(attempts.c.reason == Reason.CRASHED, ~attempts.c.shared_fault)
    .order_by(attempts.c.number)
)
_PROGRESSED = (
    sa.select(sa.func.coalesce(sa.func.max(attempts.c.number), 0))
    .where(attempts.c.job_id == sa.bindparam("wanted"), attempts.c.committed_step > attempts.c.start_step)
    .scalar_subquery()
)
SINCE_PROGRESS = (
    sa.select(*_COLUMNS)
    .where(attempts.c.job_id == sa.bindparam("wanted"), attempts.c.number >= _PROGRESSED)
    .where(attempts.c.reason.is_not(None), ~attempts.c.shared_fault)
    .order_by(attempts.c.number)
)
_MOST = sa.bindparam("most", type_=sa.Integer())
# Attempts whose lease is over and that nobody has dealt with yet.
RUN_OUT = (
    sa.select(attempts.c.id)
    .where(LIVE, ~attempts.c.lapsed, attempts.c.lease_expires_at_ms < sa.bindparam("at"))
    .order_by(attempts.c.lease_expires_at_ms)
    .limit(_MOST)
)
# Attempts that were renewed by a clock which has been set back since.
AHEAD = (
    sa.select(attempts.c.id)
    .where(LIVE, ~attempts.c.lapsed, attempts.c.lease_expires_at_ms > sa.bindparam("ends_after"))
    .where(attempts.c.renewed_at_ms > sa.bindparam("renewed_after"))
    .order_by(attempts.c.lease_expires_at_ms)
    .limit(_MOST)
)
# Enough to estimate a rate from, and few enough to read at every heartbeat.
HISTORY_ROWS = 300
_latest = (
    sa.select(attempts.c.started_at_ms, attempts.c.renewed_at_ms, attempts.c.reason)
    # Of the operator's machines: what a project's own nodes do is nobody else's pace.
    .where(attempts.c.ended_at_ms > sa.bindparam("since"), ~attempts.c.machine_id.contains(AT))
    .order_by(attempts.c.ended_at_ms.desc())
    .limit(HISTORY_ROWS)
    .subquery()
)
_interrupted = _latest.c.reason.in_([reason for reason, counts in INTERRUPTION.items() if counts])
# Time run, up to the last sign of life, and how many ends were interruptions.
HISTORY: sa.Select[Any] = sa.select(
    sa.func.sum(_latest.c.renewed_at_ms - _latest.c.started_at_ms),
    sa.func.sum(sa.case((_interrupted, 1), else_=0)),
)
_ATTEMPT = (*AttemptRow.__slots__, "request_id")
_BILL = {  # columns of the ledger, by what an attempt calls them
    "attempt_id": "id",
    "project_id": "billed_to",
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
_OTHERS = {**types_of(events, "project_id", "type", "data"), "billed_to": ledger.c.project_id.type}
_TYPES = {**types_of(attempts, *_ATTEMPT), **_OTHERS}
_INSERTS = {table.name: sa.insert(table).inline() for table in (attempts, ledger, events)}


class Attempts(Queries, work_store.Attempts):
    def begin_each(self, begun: Sequence[Beginning]) -> None:
        if begun:
            begin_each(self._connection, self._dialect_name, begun)

    def get(self, attempt_id: str) -> AttemptRow | None:
        return self._one(_BY_ID, wanted=attempt_id)

    def get_each(self, attempt_ids: Sequence[str]) -> Mapping[str, AttemptRow]:
        found = self._connection.execute(_of_ids(self._dialect_name), {"wanted": list(attempt_ids)})
        return {row.id: _attempt(row) for row in found}

    def live_of_job(self, job_id: str) -> AttemptRow | None:
        return self._one(_LIVE_OF_JOB, wanted=job_id)

    def before_each(self, asked: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], Before]:
        rows = [{"node_id": node_id, "request_id": request_id} for node_id, request_id in asked]
        found = self._connection.execute(_before_each(self._dialect_name), {ROWS: rows})
        return {
            (node_id, request_id): Before(None if which[0] is None else Earlier(*which), leases)
            for node_id, request_id, leases, *which in found
        }

    def update_live(self, attempt_id: str, **columns: Any) -> AttemptRow | None:
        statement = _update_live_returning(tuple(columns))
        changed = self._connection.execute(statement, {"wanted": attempt_id, **columns}).first()
        return None if changed is None else _attempt(changed)

    def update_live_each(self, columns_by_id: Mapping[str, Mapping[str, Any]]) -> bool:
        rows = [{"id": attempt_id, **columns} for attempt_id, columns in columns_by_id.items()]
        changed = update_rows(self._connection, self._dialect_name, attempts, rows, ended_at_ms=None)
        return changed == len(rows)

    def run_out(self, *, at_ms: int, limit: int) -> Sequence[str]:
        return list(self._connection.scalars(RUN_OUT, {"at": at_ms, "most": limit}))

    def ahead(self, *, renewed_after_ms: int, ends_after_ms: int, limit: int) -> Sequence[str]:
        bounds = {"renewed_after": renewed_after_ms, "ends_after": ends_after_ms, "most": limit}
        return list(self._connection.scalars(AHEAD, bounds))

    def failed_since_progress(self, job_id: str) -> Sequence[AttemptRow]:
        return [_attempt(row) for row in self._connection.execute(SINCE_PROGRESS, {"wanted": job_id})]

    def crashed(self, job_id: str) -> Sequence[AttemptRow]:
        return [_attempt(row) for row in self._connection.execute(_CRASHED, {"wanted": job_id})]

    def history(self, *, since_ms: int) -> tuple[int, int]:
        run_ms, interruptions = self._connection.execute(HISTORY, {"since": since_ms}).one()
        return int(run_ms or 0), int(interruptions or 0)

    def _one(self, query: sa.Select[Any], **values: str) -> AttemptRow | None:
        row = self._connection.execute(query, values).first()
        return None if row is None else _attempt(row)


@functools.cache
def _of_ids(dialect_name: str) -> sa.Select[Any]:
    return sa.select(*_COLUMNS).where(among(dialect_name, attempts.c.id, "wanted"))


@functools.cache
def _before_each(dialect_name: str) -> sa.Select[Any]:
    """Look into the index once for each pair; two lists would be looked up each with each."""
    asked = row_list(dialect_name, types_of(attempts, "node_id", "request_id"))
    same = (attempts.c.node_id == asked.c.node_id) & (attempts.c.request_id == asked.c.request_id)
    held = attempts.alias("held")
    leases = (
        sa.select(sa.func.count())
        .where(held.c.node_id == asked.c.node_id, held.c.ended_at_ms.is_(None), ~held.c.lapsed)
        .scalar_subquery()
        .label("leases")
    )
    found = (asked.c.node_id, asked.c.request_id, leases, attempts.c.id, attempts.c.job_id, attempts.c.pictures)
    before = sa.select(*found).select_from(asked.outerjoin(attempts, same)).subquery("before")
    return sa.select(before).where(sa.or_(before.c.leases > 0, before.c.id.is_not(None)))


@functools.cache
def _update_live(names: tuple[str, ...]) -> sa.Update:
    """Return the update of these columns. The use cases set only a few combinations of columns."""
    return (
        sa.update(attempts)
        .where(attempts.c.id == sa.bindparam("wanted"), LIVE)
        .values({name: sa.bindparam(name) for name in names})
    )


@functools.cache
def _update_live_returning(names: tuple[str, ...]) -> Any:
    return _update_live(names).returning(*_COLUMNS)


def _attempt(row: sa.Row[Any]) -> AttemptRow:
    values = dict(zip(AttemptRow.__slots__, row, strict=True))
    if values["reason"] is not None:
        values["reason"] = Reason(values["reason"])
    return AttemptRow(**values)


def begin_each(connection: sa.Connection, dialect_name: str, begun: Sequence[Beginning]) -> None:
    """Insert attempts with bills and events; see `giornata.control.ports.node_queries.work_store.Attempts`."""
    rows = [
        {
            **dict(zip(AttemptRow.__slots__, _values(each.attempt), strict=True)),
            "request_id": each.request_id,
            "project_id": each.event.project_id,
            "billed_to": each.billed_to or each.event.project_id,
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
    """Return one statement that inserts attempts, bills and events.

    The order in which the parts run is PostgreSQL's; foreign keys are looked at when all have run.
    """
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
