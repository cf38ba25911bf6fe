"""Attempts. Whatever changes one does so WHERE it has not ended: an ended attempt cannot be brought back."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.work_rows import AttemptRow
from giornata.domain.machine_ids import AT
from giornata.domain.reasons import INTERRUPTION, Reason
from giornata.store.schema import attempts

_COLUMNS = tuple(attempts.c[name] for name in AttemptRow.__slots__)
LIVE = attempts.c.ended_at_ms.is_(None)
# Made once: building a statement costs more than running it.
_BY_ID = sa.select(*_COLUMNS).where(attempts.c.id == sa.bindparam("wanted"))
_LIVE_OF_JOB = sa.select(*_COLUMNS).where(attempts.c.job_id == sa.bindparam("wanted"), LIVE)
_LIVE_OF_NODES = sa.select(attempts.c.node_id, attempts.c.id).where(
    attempts.c.node_id.in_(sa.bindparam("wanted", expanding=True)), LIVE
)
_OF_REQUEST = sa.select(*_COLUMNS).where(
    attempts.c.node_id == sa.bindparam("node"), attempts.c.request_id == sa.bindparam("request")
)
_OF_IDS = sa.select(*_COLUMNS).where(attempts.c.id.in_(sa.bindparam("wanted", expanding=True)))
# Request ids are drawn at random: those of another node's that are equal are looked at twice, and left out.
_OF_REQUESTS: sa.Select[Any] = sa.select(*_COLUMNS, attempts.c.request_id).where(
    attempts.c.node_id.in_(sa.bindparam("nodes", expanding=True)),
    attempts.c.request_id.in_(sa.bindparam("requests", expanding=True)),
)
_INSERT = sa.insert(attempts)
_CRASHED = (
    sa.select(*_COLUMNS)
    .where(attempts.c.job_id == sa.bindparam("wanted"))
    .where(attempts.c.reason == Reason.CRASHED, ~attempts.c.shared_fault)
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


class Attempts:
    """See `giornata.control.ports.work_store.Attempts`."""

    def __init__(self, connection: sa.Connection, dialect_name: str) -> None:
        self._connection = connection
        self._dialect_name = dialect_name

    def insert_each(self, attempts: Sequence[AttemptRow], *, request_ids: Sequence[str]) -> None:
        if not attempts:
            return
        rows = [
            {"request_id": request_id, **{name: getattr(attempt, name) for name in AttemptRow.__slots__}}
            for attempt, request_id in zip(attempts, request_ids, strict=True)
        ]
        self._connection.execute(_INSERT, rows)

    def get(self, attempt_id: str) -> AttemptRow | None:
        return self._one(_BY_ID, wanted=attempt_id)

    def get_each(self, attempt_ids: Sequence[str]) -> Mapping[str, AttemptRow]:
        found = self._connection.execute(_OF_IDS, {"wanted": attempt_ids})
        return {row.id: _attempt(row) for row in found}

    def live_of_job(self, job_id: str) -> AttemptRow | None:
        return self._one(_LIVE_OF_JOB, wanted=job_id)

    def live_of_nodes(self, node_ids: Sequence[str]) -> list[tuple[str, str]]:
        found = self._connection.execute(_LIVE_OF_NODES, {"wanted": node_ids})
        return [(row.node_id, row.id) for row in found]

    def of_request(self, node_id: str, request_id: str) -> AttemptRow | None:
        return self._one(_OF_REQUEST, node=node_id, request=request_id)

    def of_requests(self, asked: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], AttemptRow]:
        node_ids, request_ids = zip(*asked, strict=True)
        found = self._connection.execute(_OF_REQUESTS, {"nodes": node_ids, "requests": request_ids})
        return {(row.node_id, row.request_id): _attempt(row) for row in found}

    def update_live(self, attempt_id: str, **columns: Any) -> AttemptRow | None:
        statement = _update_live_returning(tuple(columns))
        changed = self._connection.execute(statement, {"wanted": attempt_id, **columns}).first()
        return None if changed is None else _attempt(changed)

    def update_live_each(self, columns_by_id: Mapping[str, Mapping[str, Any]]) -> bool:
        names = tuple(next(iter(columns_by_id.values())))
        rows = [{"wanted": attempt_id, **columns} for attempt_id, columns in columns_by_id.items()]
        return self._connection.execute(_update_live(names), rows).rowcount == len(rows)

    def run_out(self, *, at_ms: int, limit: int) -> Sequence[str]:
        return list(self._connection.scalars(RUN_OUT, {"at": at_ms, "most": limit}))

    def ahead(self, *, renewed_after_ms: int, ends_after_ms: int, limit: int) -> Sequence[str]:
        bounds = {"renewed_after": renewed_after_ms, "ends_after": ends_after_ms, "most": limit}
        return list(self._connection.scalars(AHEAD, bounds))

    def crashed_machines(self, job_id: str) -> frozenset[str]:
        return frozenset(attempt.machine_id for attempt in self.crashed(job_id))

    def crashed(self, job_id: str) -> Sequence[AttemptRow]:
        return [_attempt(row) for row in self._connection.execute(_CRASHED, {"wanted": job_id})]

    def history(self, *, since_ms: int) -> tuple[int, int]:
        run_ms, interruptions = self._connection.execute(HISTORY, {"since": since_ms}).one()
        return int(run_ms or 0), int(interruptions or 0)

    def _one(self, query: sa.Select[Any], **values: str) -> AttemptRow | None:
        row = self._connection.execute(query, values).first()
        return None if row is None else _attempt(row)


@functools.cache
def _update_live(names: tuple[str, ...]) -> sa.Update:
    """There are as many as there are combinations of columns that the use cases set: a few."""
    return (
        sa.update(attempts)
        .where(attempts.c.id == sa.bindparam("wanted"), LIVE)
        .values({name: sa.bindparam(name) for name in names})
    )


@functools.cache
def _update_live_returning(names: tuple[str, ...]) -> Any:
    return _update_live(names).returning(*_COLUMNS)


def _attempt(row: sa.Row[Any]) -> AttemptRow:
    values = dict(zip(AttemptRow.__slots__, row, strict=False))  # another column may come behind these
    if values["reason"] is not None:
        values["reason"] = Reason(values["reason"])
    return AttemptRow(**values)
