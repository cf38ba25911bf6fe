"""Queries for pins of jobs, datasets and checkpoints."""

from collections.abc import Sequence

import sqlalchemy as sa

from giornata.control.ports.user_queries import end_of_life_store
from giornata.control.ports.user_queries.end_of_life_store import PinRecord
from giornata.store.database.rows import Queries
from giornata.store.schema import checkpoints, datasets, jobs


class Pins(Queries, end_of_life_store.Pins):
    def set(self, pin: PinRecord, *, project_id: str, pinned: bool) -> bool | None:
        # A commit prunes checkpoints and a deletion asks for pins under this lock.
        if pin.step is not None and not self._lock_job(pin.target_id, project_id):
            return None
        for table, condition in _places(pin):
            this = condition & (table.c.project_id == project_id)
            other = this & (table.c.pinned != pinned)
            if self._connection.execute(sa.update(table).where(other).values(pinned=pinned)).rowcount:
                return True
            if self._connection.execute(sa.select(table.c.pinned).where(this)).first() is not None:
                return False
        return None

    def _lock_job(self, job_id: str, project_id: str) -> bool:
        known = (jobs.c.id == job_id) & (jobs.c.project_id == project_id) & jobs.c.deleted_at_ms.is_(None)
        query = sa.select(jobs.c.id).where(known).with_for_update(key_share=True)
        return self._connection.scalar(query) is not None

    def of_project(self, project_id: str, *, limit: int) -> Sequence[PinRecord]:
        found = [
            sa.select(jobs.c.id.label("target"), sa.null().label("step")).where(_mine(jobs, project_id)),
            sa.select(datasets.c.id, sa.null()).where(_mine(datasets, project_id)),
            sa.select(checkpoints.c.job_id, checkpoints.c.step).where(_mine(checkpoints, project_id)),
        ]
        records: list[PinRecord] = []
        for query in found:
            rows = self._connection.execute(query.order_by(*query.selected_columns[:1]).limit(limit - len(records)))
            records += [PinRecord(target_id=target, step=step) for target, step in rows]
        return records


def _mine(table: sa.Table, project_id: str) -> sa.ColumnElement[bool]:
    return (table.c.project_id == project_id) & table.c.pinned


def _places(pin: PinRecord) -> Sequence[tuple[sa.Table, sa.ColumnElement[bool]]]:
    """Return where the thing may be. A checkpoint that was rejected is none."""
    if pin.step is not None:
        this = (checkpoints.c.job_id == pin.target_id) & (checkpoints.c.step == pin.step)
        return [(checkpoints, this & checkpoints.c.rejected.is_(sa.false()))]
    known = (jobs.c.id == pin.target_id) & jobs.c.deleted_at_ms.is_(None)
    return [(jobs, known), (datasets, datasets.c.id == pin.target_id)]
