"""A job's history."""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.work_rows import AttemptRow, JobRow, NewEvent
from giornata.protocol.events import EventType
from giornata.store import schema
from giornata.store.dialect_insert import insert_for
from giornata.store.row_list import insert_rows
from giornata.store.schema import events


class Events:
    """See `giornata.control.ports.work_store.Events`."""

    def __init__(self, connection: sa.Connection, dialect_name: str) -> None:
        self._connection = connection
        self._dialect_name = dialect_name

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
