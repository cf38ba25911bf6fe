"""Attempts. Whatever changes one does so WHERE it has not ended: an ended attempt cannot be brought back."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.work_store import AttemptRow
from giornata.domain.reasons import INTERRUPTION, Reason
from giornata.store.schema import attempts

_COLUMNS = tuple(attempts.c[name] for name in AttemptRow.__slots__)
LIVE = attempts.c.ended_at_ms.is_(None)
# Made once: building a statement costs more than running it.
_BY_ID = sa.select(*_COLUMNS).where(attempts.c.id == sa.bindparam("wanted"))
_LIVE_OF_JOB = sa.select(*_COLUMNS).where(attempts.c.job_id == sa.bindparam("wanted"), LIVE)
_OF_REQUEST = sa.select(*_COLUMNS).where(
    attempts.c.node_id == sa.bindparam("node"), attempts.c.request_id == sa.bindparam("request")
)
_INSERT = sa.insert(attempts)
# Enough to estimate a rate from, and few enough to read at every heartbeat.
HISTORY_ROWS = 300


class Attempts:
    """See `giornata.control.ports.work_store.Attempts`."""

    def __init__(self, connection: sa.Connection, dialect_name: str) -> None:
        self._connection = connection
        self._dialect_name = dialect_name

    def insert(self, attempt: AttemptRow, *, request_id: str) -> None:
        self._connection.execute(_INSERT, {"request_id": request_id, **dataclasses.asdict(attempt)})

    def get(self, attempt_id: str) -> AttemptRow | None:
        return self._one(_BY_ID, wanted=attempt_id)

    def live_of_job(self, job_id: str) -> AttemptRow | None:
        return self._one(_LIVE_OF_JOB, wanted=job_id)

    def of_request(self, node_id: str, request_id: str) -> AttemptRow | None:
        return self._one(_OF_REQUEST, node=node_id, request=request_id)

    def update_live(self, attempt_id: str, **columns: Any) -> AttemptRow | None:
        changed = self._connection.execute(_update_live(tuple(columns)), {"wanted": attempt_id, **columns}).first()
        return None if changed is None else _attempt(changed)

    def run_out(self, *, at_ms: int, limit: int) -> Sequence[str]:
        return list(self._connection.scalars(run_out_statement(at_ms=at_ms, limit=limit)))

    def crashed_machines(self, job_id: str) -> frozenset[str]:
        return frozenset(attempt.machine_id for attempt in self.crashed(job_id))

    def crashed(self, job_id: str) -> Sequence[AttemptRow]:
        found = self._connection.execute(
            sa.select(*_COLUMNS)
            .where(attempts.c.job_id == job_id, attempts.c.reason == Reason.CRASHED)
            .order_by(attempts.c.number)
        )
        return [_attempt(row) for row in found]

    def history(self, *, since_ms: int) -> tuple[int, int]:
        run_ms, interruptions = self._connection.execute(history_statement(since_ms=since_ms)).one()
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
        .returning(*_COLUMNS)
    )


def run_out_statement(*, at_ms: int, limit: int) -> sa.Select[Any]:
    """Attempts whose lease is over and that nobody has dealt with yet."""
    return (
        sa.select(attempts.c.id)
        .where(LIVE, ~attempts.c.lapsed, attempts.c.lease_expires_at_ms < at_ms)
        .order_by(attempts.c.lease_expires_at_ms)
        .limit(limit)
    )


def history_statement(*, since_ms: int) -> sa.Select[Any]:
    """Time run, up to the last sign of life, and how many ends were interruptions."""
    interruptions = [reason for reason, counts in INTERRUPTION.items() if counts]
    latest = (
        sa.select(attempts.c.started_at_ms, attempts.c.renewed_at_ms, attempts.c.reason)
        .where(attempts.c.ended_at_ms > since_ms)
        .order_by(attempts.c.ended_at_ms.desc())
        .limit(HISTORY_ROWS)
        .subquery()
    )
    return sa.select(
        sa.func.sum(latest.c.renewed_at_ms - latest.c.started_at_ms),
        sa.func.sum(sa.case((latest.c.reason.in_(interruptions), 1), else_=0)),
    )


def _attempt(row: sa.Row[Any]) -> AttemptRow:
    values = dict(row._mapping)
    reason = values["reason"]
    return AttemptRow(**values | {"reason": None if reason is None else Reason(reason)})
