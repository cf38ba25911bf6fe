"""Queries that write jobs which ended elsewhere."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.node_queries.work_rows import INHERITED
from giornata.control.ports.user_queries import import_store
from giornata.control.ports.user_queries.import_store import (
    ArtifactToImport,
    CheckpointToImport,
    EventToImport,
    ImportedPast,
    LineToImport,
    MetricToImport,
    PictureToImport,
)
from giornata.control.ports.user_queries.records import AttemptRecord, JobRecord
from giornata.domain.generation.picture import PictureState
from giornata.domain.jobs.job import IMPORTED_FROM
from giornata.store.database.rows import Queries, insert_for, insert_rows
from giornata.store.schema import artifacts as artifacts_table
from giornata.store.schema import attempts, events, imported_attempts, jobs, logs, picture_orders, pictures
from giornata.store.schema import checkpoints as checkpoints_table
from giornata.store.schema import metrics as metrics_table
from giornata.store.schema.made import OF_IMPORTED_HISTORY

ELSEWHERE = "imported"
"""Stands for the node and the machine of an attempt that another installation made."""
_COLUMNS = [column for column in imported_attempts.c if column.name in AttemptRecord.__slots__]
_AWAITED = (pictures.c.state == PictureState.CANCELED) & pictures.c.place.is_(None)


class ImportedJobs(Queries, import_store.ImportedJobs):
    def find(self, project_id: str, imported_from: str) -> str | None:
        mine = (jobs.c.project_id == project_id) & jobs.c.deleted_at_ms.is_(None)
        same = jobs.c.labels[IMPORTED_FROM].as_string() == imported_from
        found: str | None = self._connection.scalar(sa.select(jobs.c.id).where(mine, same).limit(1))
        return found

    def add_results(
        self,
        job: JobRecord,
        *,
        attempt_id: str,
        checkpoints: Sequence[CheckpointToImport],
        artifacts: Sequence[ArtifactToImport],
        cost_micro_usd: int | None,
        at_ms: int,
    ) -> None:
        this = sa.update(jobs).where(jobs.c.id == job.id)
        self._connection.execute(this.values(imported_cost_micro_usd=cost_micro_usd))
        owner = {"job_id": job.id, "project_id": job.project_id, "created_at_ms": at_ms}
        if checkpoints:
            rows = [
                {
                    **owner,
                    "step": each.step,
                    "attempt_number": INHERITED,
                    "sha256": each.sha256,
                    "size_bytes": each.size_bytes,
                }
                for each in checkpoints
            ]
            self._connection.execute(sa.insert(checkpoints_table), rows)
        if artifacts:
            self._add_attempt(job, attempt_id)
            rows = [
                {
                    **owner,
                    "attempt_id": attempt_id,
                    "name": each.name,
                    "sha256": each.sha256,
                    "size_bytes": each.size_bytes,
                    "media_type": each.media_type,
                }
                for each in artifacts
            ]
            self._connection.execute(sa.insert(artifacts_table), rows)

    def _add_attempt(self, job: JobRecord, attempt_id: str) -> None:
        instants = ("started_at_ms", "renewed_at_ms", "lease_expires_at_ms", "ended_at_ms")
        row = {
            "id": attempt_id,
            "job_id": job.id,
            "number": 1,
            "node_id": ELSEWHERE,
            "machine_id": ELSEWHERE,
            "node_name": ELSEWHERE,
            "request_id": attempt_id,
            "price_micro_usd_per_hour": 0,
            "start_step": job.step,
            "last_step": job.step,
            "committed_step": job.committed_step,
            **dict.fromkeys(instants, job.ended_at_ms),
        }
        self._connection.execute(sa.insert(attempts), [row])

    def add_history(self, job_id: str, *, metrics: Sequence[MetricToImport], lines: Sequence[LineToImport]) -> None:
        points = [
            {
                "job_id": job_id,
                "step": each.step,
                "attempt_number": each.attempt_number,
                "values": dict(each.values),
                "at_ms": each.at_ms,
            }
            for each in metrics
        ]
        texts = [
            {
                "job_id": job_id,
                "attempt_number": each.attempt_number,
                "number": each.number,
                "line": each.line,
                "at_ms": each.at_ms,
            }
            for each in lines
        ]
        for table, rows in ((metrics_table, points), (logs, texts)):
            if rows:
                self._connection.execute(insert_for(self._dialect_name, table).on_conflict_do_nothing(), rows)

    def add_events(self, job: JobRecord, new: Sequence[EventToImport]) -> None:
        names = {f"{OF_IMPORTED_HISTORY}{each.number}": each for each in new}
        query = sa.select(events.c.notice_id).where(events.c.job_id == job.id, events.c.notice_id.in_(names))
        there = set(self._connection.scalars(query))
        rows = [
            {
                "job_id": job.id,
                "project_id": job.project_id,
                "type": each.type,
                "attempt_number": each.attempt_number,
                "data": dict(each.data),
                "at_ms": each.at_ms,
                "notice_id": name,
            }
            for name, each in names.items()
            if name not in there
        ]
        if rows:
            insert_rows(self._connection, self._dialect_name, events, rows)

    def add_attempts(self, attempts: Sequence[AttemptRecord]) -> None:
        if attempts:
            rows = [{column.name: getattr(each, column.name) for column in _COLUMNS} for each in attempts]
            insert = insert_for(self._dialect_name, imported_attempts).on_conflict_do_nothing()
            self._connection.execute(insert, rows)

    def pasts(self, job_ids: Sequence[str]) -> Mapping[str, ImportedPast]:
        known = (jobs.c.id.in_(job_ids), jobs.c.imported_cost_micro_usd.is_not(None))
        costs = self._connection.execute(sa.select(jobs.c.id, jobs.c.imported_cost_micro_usd).where(*known)).all()
        query = sa.select(*_COLUMNS).where(imported_attempts.c.job_id.in_([row.id for row in costs]))
        query = query.order_by(imported_attempts.c.job_id, imported_attempts.c.number)
        found = [_attempt(dict(row)) for row in self._connection.execute(query).mappings()] if costs else []
        by_job = {job_id: tuple(some) for job_id, some in groupby(found, lambda each: each.job_id)}
        return {
            row.id: ImportedPast(cost_micro_usd=row.imported_cost_micro_usd, attempts=by_job.get(row.id, ()))
            for row in costs
        }

    def adopt(self, sweep_id: str, job_ids: Sequence[str], *, project_id: str) -> None:
        these = (jobs.c.id.in_(job_ids)) & (jobs.c.project_id == project_id)
        self._connection.execute(sa.update(jobs).where(these).values(parent_id=sweep_id))

    def awaited_pictures(self, order_id: str, numbers: Sequence[int]) -> Mapping[int, bool]:
        these = (pictures.c.order_id == order_id) & pictures.c.number.in_(numbers)
        query = sa.select(pictures.c.number, _AWAITED.label("awaited")).where(these)
        return {row.number: bool(row.awaited) for row in self._connection.execute(query)}

    def end_pictures(self, order_id: str, ended: Sequence[PictureToImport]) -> set[int]:
        awaited = self.awaited_pictures(order_id, [each.number for each in ended])
        new = [each for each in ended if awaited.get(each.number)]
        if new:
            this = (pictures.c.order_id == order_id) & (pictures.c.number == sa.bindparam("of_number"))
            rows = [asdict(each) for each in new]
            for row in rows:
                row["of_number"] = row.pop("number")
            self._connection.execute(sa.update(pictures).where(this), rows)
            self._note_places(order_id, max(each.place for each in new))
        return {each.number for each in new}

    def _note_places(self, order_id: str, place: int) -> None:
        """Note the latest place, of which nobody has to be told."""
        latest = {"ended": place, "told": place}
        this = (picture_orders.c.order_id == order_id) & (picture_orders.c.ended < place)
        self._connection.execute(sa.update(picture_orders).where(this).values(latest))


def _attempt(row: dict[str, Any]) -> AttemptRecord:
    """Return the attempt. It was last heard of when it ended."""
    return AttemptRecord(**row, renewed_at_ms=row["ended_at_ms"])
