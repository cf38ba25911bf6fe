"""Read and write the reports of nodes about a job: log lines, metrics and events."""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.node_queries import work_store
from giornata.control.ports.node_queries.work_rows import AttemptRow, JobRow, NewEvent
from giornata.protocol.events import EventType
from giornata.store import schema
from giornata.store.database.rows import Queries, insert_for, insert_rows
from giornata.store.schema import events, logs, metrics


class Reports(Queries, work_store.Reports):
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


class Events(Queries, work_store.Events):
    def add_each(self, events: Sequence[NewEvent]) -> None:
        if not events:
            return
        names = NewEvent.__slots__
        rows = [{name: getattr(event, name) for name in names} for event in events]
        insert_rows(self._connection, self._dialect_name, schema.events, rows)

    def add(  # noqa: PLR0917
        self,
        job_id: str,
        project_id: str,
        event_type: EventType,
        attempt_number: int | None,
        data: Mapping[str, Any],
        at_ms: int,
    ) -> None:
        event = NewEvent(
            job_id=job_id,
            project_id=project_id,
            type=event_type,
            attempt_number=attempt_number,
            data=data,
            at_ms=at_ms,
        )
        self.add_each([event])

    def add_notice(
        self, job: JobRow, attempt: AttemptRow, data: Mapping[str, Any], *, notice_id: str | None, at_ms: int
    ) -> None:
        row = {
            "job_id": job.id,
            "project_id": job.project_id,
            "type": EventType.NOTICE,
            "attempt_number": attempt.number,
            "data": dict(data),
            "at_ms": at_ms,
            "notice_id": notice_id,
        }
        self._connection.execute(insert_for(self._dialect_name, events).values(row).on_conflict_do_nothing())

    def count_notices(self, job_id: str, *, up_to: int) -> int:
        some = sa.select(sa.literal_column("1")).where(_notices_of(job_id)).limit(up_to).subquery()
        return self._connection.scalar(sa.select(sa.func.count()).select_from(some)) or 0

    def has_notice(self, job_id: str, notice_id: str) -> bool:
        found = sa.select(events.c.id).where(_notices_of(job_id), events.c.notice_id == notice_id).limit(1)
        return self._connection.scalar(found) is not None


def _notices_of(job_id: str) -> sa.ColumnElement[bool]:
    return (events.c.job_id == job_id) & (events.c.type == EventType.NOTICE)
