"""Bans and strikes."""

import sqlalchemy as sa

from giornata.control.ports.work_rows import AttemptRow
from giornata.domain.reasons import Reason
from giornata.store.dialect_insert import insert_for
from giornata.store.schema import bans, strikes


class Judgements:
    """See `giornata.control.ports.work_store.Judgements`."""

    def __init__(self, connection: sa.Connection, dialect_name: str) -> None:
        self._connection = connection
        self._dialect_name = dialect_name

    def ban(self, job_id: str, machine_id: str, reason: Reason, *, at_ms: int) -> None:
        self._connection.execute(
            insert_for(self._dialect_name, bans)
            .values(job_id=job_id, machine_id=machine_id, reason=reason, at_ms=at_ms)
            .on_conflict_do_nothing()
        )

    def strike(self, attempt: AttemptRow, reason: Reason, *, at_ms: int) -> bool:
        struck = self._connection.execute(
            insert_for(self._dialect_name, strikes)
            .values(machine_id=attempt.machine_id, attempt_id=attempt.id, reason=reason, at_ms=at_ms)
            .on_conflict_do_nothing(index_elements=[strikes.c.attempt_id])
            .returning(strikes.c.id)
        )
        return struck.first() is not None
