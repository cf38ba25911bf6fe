"""Log lines and metrics."""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.work_rows import AttemptRow
from giornata.store.dialect_insert import insert_for
from giornata.store.row_list import insert_rows
from giornata.store.schema import logs, metrics


class Reports:
    """See `giornata.control.ports.work_store.Reports`."""

    def __init__(self, connection: sa.Connection, dialect_name: str) -> None:
        self._connection = connection
        self._dialect_name = dialect_name

    def count_lines(self, job_id: str, *, up_to: int) -> int:
        some = sa.select(sa.literal_column("1")).where(logs.c.job_id == job_id).limit(up_to).subquery()
        return self._connection.scalar(sa.select(sa.func.count()).select_from(some)) or 0

    def add_lines(self, attempt: AttemptRow, *, first: int, lines: Sequence[str], at_ms: int) -> None:
        if not lines:
            return
        rows = [
            {
                "job_id": attempt.job_id,
                "attempt_number": attempt.number,
                "number": number,
                "line": line,
                "at_ms": at_ms,
            }
            for number, line in enumerate(lines, first)
        ]
        statement = insert_for(self._dialect_name, logs).on_conflict_do_nothing(
            index_elements=[logs.c.job_id, logs.c.attempt_number, logs.c.number]
        )
        self._connection.execute(statement, rows)

    def put_metrics(self, points: Sequence[tuple[AttemptRow, int, Mapping[str, float]]], *, at_ms: int) -> None:
        if not points:
            return
        rows = [
            {
                "job_id": attempt.job_id,
                "step": step,
                "attempt_number": attempt.number,
                "values": dict(values),
                "at_ms": at_ms,
            }
            for attempt, step, values in sorted(points, key=lambda point: (point[0].job_id, point[1]))
        ]
        insert_rows(self._connection, self._dialect_name, metrics, rows, _newer)

    def count_metrics(self, job_id: str, *, from_step: int, up_to: int) -> int:
        above = (metrics.c.job_id == job_id) & (metrics.c.step >= from_step)
        some = sa.select(sa.literal_column("1")).where(above).limit(up_to).subquery()
        return self._connection.scalar(sa.select(sa.func.count()).select_from(some)) or 0

    def metric_names(self, job_id: str, *, points: int) -> set[str]:
        latest = sa.select(metrics.c["values"]).where(metrics.c.job_id == job_id)
        latest = latest.order_by(metrics.c.step.desc()).limit(points)
        return {name for values in self._connection.scalars(latest) for name in values}


def _newer(statement: Any) -> Any:
    new = statement.excluded
    return statement.on_conflict_do_update(
        index_elements=[metrics.c.job_id, metrics.c.step],
        set_={"attempt_number": new.attempt_number, "values": new["values"], "at_ms": new.at_ms},
        where=metrics.c.attempt_number <= new.attempt_number,
    )
