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
