"""Queries for quotas of projects. Each sum that a submission asks for is read from an index of its own."""

import zlib
from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.user_queries import quota_store
from giornata.control.ports.user_queries.quota_store import CountedUse
from giornata.domain.generation.picture import ORDER_KINDS
from giornata.domain.jobs.job import JobState
from giornata.domain.jobs.sweep import SWEEP_KIND
from giornata.store.database.rows import Queries
from giornata.store.schema import artifacts, blobs, checkpoints, jobs, picture_orders, pictures, projects, uploads
from giornata.store.schema.pictures import OPEN_ORDER

# Constants in the text, because a planner cannot prove that a parameter matches a partial index.
COUNTED = sa.literal_column("jobs.state IN ('queued', 'running') AND jobs.only_machine_id IS NULL", sa.Boolean)
QUEUED = sa.and_(COUNTED, jobs.c.state == sa.literal_column(f"'{JobState.QUEUED}'"))
RUNNING = sa.and_(COUNTED, jobs.c.state == sa.literal_column(f"'{JobState.RUNNING}'"))
OWN = jobs.c.billed_to.is_(None)
OPEN_UPLOAD = sa.and_(uploads.c.completed_at_ms.is_(None), uploads.c.attempt_id.is_(None))
LOCK_SPACE = "running jobs of "
_PROJECT = sa.bindparam("project", type_=sa.String())
# Made once: building a statement costs more than running it.
_CEILINGS = sa.select(projects.c.id, projects.c.max_running_jobs).where(projects.c.max_running_jobs.is_not(None))
_RUNNING = (
    sa.select(jobs.c.project_id, sa.func.count().label("number"))
    .where(RUNNING, OWN, jobs.c.kind.not_in(sorted({*ORDER_KINDS, SWEEP_KIND})))
    .group_by(jobs.c.project_id)
)
_RUNNING_OF = _RUNNING.where(jobs.c.project_id.in_(sa.bindparam("projects", expanding=True)))
_QUEUED = sa.select(sa.func.count()).select_from(jobs).where(QUEUED, OWN, jobs.c.project_id == _PROJECT)
_OPEN_ORDERS = (
    sa.select(sa.func.count())
    .select_from(picture_orders)
    .where(picture_orders.c.project_id == _PROJECT, sa.literal_column(OPEN_ORDER, sa.Boolean))
)
# A step of an order is a picture. The row of a job stays when the job is deleted.
_PICTURES = sa.select(sa.func.sum(jobs.c.total_steps)).where(
    jobs.c.project_id == _PROJECT,
    jobs.c.created_at_ms >= sa.bindparam("since", type_=sa.BigInteger()),
    jobs.c.kind.in_(sorted(ORDER_KINDS)),
    OWN,
)
_BLOBS = sa.select(sa.func.sum(blobs.c.size_bytes)).where(blobs.c.project_id == _PROJECT)
_UPLOADS = sa.select(sa.func.sum(uploads.c.size_bytes)).where(OPEN_UPLOAD, uploads.c.project_id == _PROJECT)
_WANTED = sa.bindparam("wanted", type_=sa.String())
_TRAINED = sa.union_all(
    *(
        sa.select(table.c.sha256).where(table.c.project_id == _PROJECT, table.c.sha256 == _WANTED)
        for table in (checkpoints, artifacts)
    )
)
_DRAWN = (
    sa.select(sa.func.sum(pictures.c.size_bytes))
    .join(picture_orders, picture_orders.c.order_id == pictures.c.order_id)
    .where(picture_orders.c.project_id == _PROJECT)
)

# Each is a count of its own in one statement: a page shows all of them.
_NUMBERS = sa.select(
    sa.select(sa.func.count())
    .select_from(jobs)
    .where(RUNNING, OWN, jobs.c.project_id == _PROJECT, jobs.c.kind.not_in(sorted({*ORDER_KINDS, SWEEP_KIND})))
    .scalar_subquery()
    .label("running"),
    _QUEUED.scalar_subquery().label("queued"),
    _OPEN_ORDERS.scalar_subquery().label("orders"),
    _PICTURES.scalar_subquery().label("pictures"),
    _BLOBS.scalar_subquery().label("blobs"),
    _UPLOADS.scalar_subquery().label("uploads"),
)


class QuotaQueries(Queries, quota_store.QuotaQueries):
    def set(self, project_id: str, limits: Mapping[str, Any]) -> bool:
        statement = sa.update(projects).where(projects.c.id == project_id).values(dict(limits))
        return self._connection.execute(statement).rowcount == 1

    def ceilings(self) -> Mapping[str, int]:
        return {row.id: row.max_running_jobs for row in self._connection.execute(_CEILINGS)}

    def running(self, project_ids: Collection[str] | None = None) -> Mapping[str, int]:
        if project_ids is None:
            found = self._connection.execute(_RUNNING)
        else:
            found = self._connection.execute(_RUNNING_OF, {"projects": sorted(project_ids)})
        return {row.project_id: row.number for row in found}

    def hold_running(self, project_ids: Collection[str]) -> Collection[str]:
        if self._dialect_name == "sqlite":
            return project_ids  # one transaction writes at a time
        return [each for each in sorted(project_ids) if self._connection.scalar(_try_lock(each))]

    def counted(self, project_id: str, *, since_ms: int) -> CountedUse:
        row = self._connection.execute(_NUMBERS, {"project": project_id, "since": since_ms}).one()
        return CountedUse(
            running_jobs=row.running,
            queued_jobs=row.queued,
            open_orders=row.orders,
            pictures=int(row.pictures or 0),
            blob_bytes=int(row.blobs or 0) + int(row.uploads or 0),
        )

    def queued(self, project_id: str) -> int:
        return self._sum(_QUEUED, project_id)

    def open_orders(self, project_id: str) -> int:
        return self._sum(_OPEN_ORDERS, project_id)

    def pictures_since(self, project_id: str, *, since_ms: int) -> int:
        return self._sum(_PICTURES, project_id, since=since_ms)

    def is_trained(self, project_id: str, sha256: str) -> bool:
        return self._connection.execute(_TRAINED, {"project": project_id, "wanted": sha256}).first() is not None

    def blob_bytes(self, project_id: str) -> int:
        return self._sum(_BLOBS, project_id) + self._sum(_UPLOADS, project_id)

    def picture_bytes(self, project_id: str) -> int:
        return self._sum(_DRAWN, project_id)

    def _sum(self, query: sa.Select[Any], project_id: str, **values: int) -> int:
        return int(self._connection.scalar(query, {"project": project_id, **values}) or 0)


def _try_lock(project_id: str) -> sa.Select[Any]:
    """Return the statement that takes the lock of this name until the transaction ends, if nobody has it."""
    key = zlib.crc32(f"{LOCK_SPACE}{project_id}".encode()) - 2**31
    return sa.select(sa.func.pg_try_advisory_xact_lock(key))
