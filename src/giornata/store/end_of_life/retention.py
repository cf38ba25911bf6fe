"""Queries for what retention takes of a project.

Rows of a job may go when the job has ended, and ended before the instant, and is not pinned. A state that has ended
never changes again, so no lock is needed: who copies a checkpoint for a retry either has the row, or finds none.
"""

import functools
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.user_queries import end_of_life_store
from giornata.control.ports.user_queries.end_of_life_store import AgedRows, TakenRows
from giornata.domain.files.retention import KeptClass, Retention, read_retention
from giornata.domain.jobs.job import TERMINAL
from giornata.store.database.rows import Queries
from giornata.store.end_of_life.deletions import DATASET_FIELDS
from giornata.store.end_of_life.freed_bytes import Utf8Bytes, blobs_of, objects_of_pictures
from giornata.store.end_of_life.rows_of_jobs import HAS_BYTES, picture_objects, told_events
from giornata.store.schema import (
    artifacts,
    caches,
    checkpoints,
    dataset_items,
    datasets,
    events,
    jobs,
    logs,
    metrics,
    pictures,
    projects,
)

Condition = sa.ColumnElement[bool]
SHOWN = 5
DATASETS_AT_ONCE = 20
PROJECT, BEFORE = sa.bindparam("project", type_=sa.String()), sa.bindparam("before", type_=sa.BigInteger())


@dataclass(frozen=True, slots=True)
class RowsOfJobs:
    """A table whose rows belong to jobs, by the column `job_id`; which rows may go at all; and the text of a row that
    is all in the database, None where its bytes are an object in storage.
    """

    table: sa.Table
    job_id: sa.Column[Any]
    may_go: Condition
    text: sa.Column[Any] | None = None


ANY = sa.true()
CLASSES: dict[KeptClass, RowsOfJobs] = {
    KeptClass.CHECKPOINTS: RowsOfJobs(checkpoints, checkpoints.c.job_id, checkpoints.c.pinned.is_(sa.false())),
    KeptClass.ARTIFACTS: RowsOfJobs(artifacts, artifacts.c.job_id, ANY),
    KeptClass.PICTURES: RowsOfJobs(pictures, pictures.c.order_id, HAS_BYTES),
    KeptClass.LOGS: RowsOfJobs(logs, logs.c.job_id, ANY, logs.c.line),
    KeptClass.METRICS: RowsOfJobs(metrics, metrics.c.job_id, ANY, metrics.c["values"]),
    KeptClass.EVENTS: RowsOfJobs(events, events.c.job_id, told_events(), events.c.data),
}
HAS_ENDED: Condition = jobs.c.state.in_(sorted(TERMINAL)) & (jobs.c.ended_at_ms < BEFORE)
"""A job that has not ended may resume: nothing of it is taken."""
MAY_LOSE: Condition = (jobs.c.project_id == PROJECT) & HAS_ENDED & ~jobs.c.pinned & jobs.c.deleted_at_ms.is_(None)
_OLD_CACHES: Condition = (caches.c.project_id == PROJECT) & (caches.c.used_at_ms < BEFORE)
"""Caches that attempts made of datasets for later jobs: they go with the datasets."""
IN_USE: Condition = (jobs.c.project_id == PROJECT) & ~HAS_ENDED


def _spare_dataset() -> Condition:
    """Return the condition of a dataset that is not pinned, was made before, and that no job used since."""
    used = (
        sa.select(jobs.c.spec[field].as_string().label("id")).where(
            IN_USE, jobs.c.spec[field].as_string().is_not(None)
        )
        for field in DATASET_FIELDS
    )
    old = (datasets.c.project_id == PROJECT) & (datasets.c.created_at_ms < BEFORE) & ~datasets.c.pinned
    return old & datasets.c.id.not_in(sa.union_all(*used))


class RetentionQueries(Queries, end_of_life_store.RetentionQueries):
    def of_project(self, project_id: str) -> Retention | None:
        query = sa.select(projects.c.retention)
        stored = self._connection.scalar(query.where(projects.c.id == project_id, projects.c.deleted_at_ms.is_(None)))
        return None if stored is None else read_retention(stored)

    def set(self, project_id: str, retention: Retention) -> None:
        days = {str(kept): count for kept, count in retention.items()}
        self._connection.execute(sa.update(projects).where(projects.c.id == project_id).values(retention=days))

    def all_projects(self) -> dict[str, Retention]:
        query = sa.select(projects.c.id, projects.c.retention).where(projects.c.deleted_at_ms.is_(None))
        found = {
            row.id: read_retention(row.retention) for row in self._connection.execute(query.order_by(projects.c.id))
        }
        return {project_id: retention for project_id, retention in found.items() if retention}

    def aged(self, project_id: str, kept: KeptClass, *, before_ms: int) -> AgedRows:
        values = {"project": project_id, "before": before_ms}
        sums, freed, examples = _aged_datasets() if kept is KeptClass.DATASETS else _aged(kept)
        count, oldest = self._connection.execute(sums, values).one()
        size_bytes = self._connection.scalar(freed, values)
        shown = list(self._connection.scalars(examples, values)) if count else []
        return AgedRows(count=count, size_bytes=int(size_bytes or 0), oldest_at_ms=oldest, examples=shown)

    def take(self, project_id: str, kept: KeptClass, *, before_ms: int, limit: int) -> TakenRows:
        values = {"project": project_id, "before": before_ms}
        if kept is KeptClass.DATASETS:
            return self._take_datasets(values)
        statement = _take(kept)
        rows = self._connection.execute(statement, {**values, "most": limit}).all()
        if kept in {KeptClass.CHECKPOINTS, KeptClass.ARTIFACTS}:
            return TakenRows(rows=len(rows), sha256s=frozenset(row.sha256 for row in rows))
        if kept is KeptClass.PICTURES:
            return TakenRows(rows=len(rows), objects=self._without_bytes([tuple(row) for row in rows]))
        return TakenRows(rows=len(rows))

    def _without_bytes(self, found: list[tuple[Any, ...]]) -> dict[str, int]:
        """Note that these pictures have no bytes any more; return the objects. The counts of the order stay."""
        this = sa.tuple_(pictures.c.order_id, pictures.c.number).in_([row[:2] for row in found])
        if found:
            self._connection.execute(sa.update(pictures).where(this).values(sha256=None, size_bytes=None))
        return picture_objects(row[2:] for row in found)

    def _take_datasets(self, values: dict[str, Any]) -> TakenRows:
        some = sa.select(datasets.c.id).where(_spare_dataset()).limit(DATASETS_AT_ONCE)
        # Whoever submits a job for one holds its row: then it is passed over.
        locked = list(self._connection.scalars(some.with_for_update(of=datasets, skip_locked=True), values))
        still = sa.select(datasets.c.id).where(_spare_dataset(), datasets.c.id.in_(locked))
        ids = list(self._connection.scalars(still, values))
        mine = (dataset_items.c.project_id == values["project"]) & dataset_items.c.dataset_id.in_(ids)
        items = sa.delete(dataset_items).where(mine).returning(dataset_items.c.sha256)
        sha256s = set(self._connection.scalars(items))
        this = (datasets.c.project_id == values["project"]) & datasets.c.id.in_(ids)
        self._connection.execute(sa.delete(datasets).where(this))
        old = sa.delete(caches).where(_OLD_CACHES).returning(caches.c.sha256)
        made = list(self._connection.scalars(old, values))
        return TakenRows(rows=len(ids) + len(made), sha256s=frozenset(sha256s.union(made)))


def _of_aged_jobs(of: RowsOfJobs) -> Condition:
    return of.job_id.in_(sa.select(jobs.c.id).where(MAY_LOSE)) & of.may_go


@functools.cache
def _aged(kept: KeptClass) -> tuple[Any, Any, Any]:
    """Return the statements of count and oldest end, of the bytes, and of the ids of jobs that ended first."""
    of = CLASSES[kept]
    joined = of.table.join(jobs, jobs.c.id == of.job_id)
    sums = sa.select(sa.func.count(), sa.func.min(jobs.c.ended_at_ms))
    has = sa.select(jobs.c.id).where(MAY_LOSE, sa.exists().where(of.job_id == jobs.c.id, of.may_go))
    return (
        sums.select_from(joined).where(MAY_LOSE, of.may_go),
        _freed(of),
        has.order_by(jobs.c.ended_at_ms, jobs.c.id).limit(SHOWN),
    )


def _freed(of: RowsOfJobs) -> sa.Select[Any]:
    """Return the statement of the bytes that go with the rows."""
    going = _of_aged_jobs(of)
    if of.text is not None:
        return sa.select(sa.func.sum(Utf8Bytes(of.text))).select_from(of.table).where(going)
    if of.table is pictures:
        return objects_of_pictures(going)
    return blobs_of(PROJECT, [sa.select(of.table.c.sha256).where(going)], {of.table: going})


@functools.cache
def _aged_datasets() -> tuple[Any, Any, Any]:
    sums = sa.select(sa.func.count(), sa.func.min(datasets.c.created_at_ms)).where(_spare_dataset())
    spare = sa.select(datasets.c.id).where(_spare_dataset())
    going = {
        dataset_items: (dataset_items.c.project_id == PROJECT) & dataset_items.c.dataset_id.in_(spare),
        caches: _OLD_CACHES,
    }
    freed = blobs_of(PROJECT, [sa.select(each.c.sha256).where(rows) for each, rows in going.items()], going)
    ids = sa.select(datasets.c.id).where(_spare_dataset()).order_by(datasets.c.created_at_ms, datasets.c.id)
    return sums, freed, ids.limit(SHOWN)


@functools.cache
def _take(kept: KeptClass) -> Any:
    of = CLASSES[kept]
    key = list(of.table.primary_key.columns)
    most = sa.bindparam("most", type_=sa.Integer())
    key_columns = (pictures.c.project_id, pictures.c.lease, pictures.c.sha256, pictures.c.size_bytes)
    wanted = (pictures.c.order_id, pictures.c.number, *key_columns)
    if kept is KeptClass.PICTURES:
        return sa.select(*wanted).where(_of_aged_jobs(of)).limit(most).with_for_update(of=pictures, skip_locked=True)
    some = sa.select(*key).where(_of_aged_jobs(of)).limit(most)
    within = key[0].in_(some) if len(key) == 1 else sa.tuple_(*key).in_(some)
    returned = [of.table.c.sha256] if "sha256" in of.table.c else key
    # Asked again: a checkpoint may be pinned between the statement's look at the rows and its lock of one.
    return sa.delete(of.table).where(within, of.may_go).returning(*returned)
