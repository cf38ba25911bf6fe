"""Queries for quotas of projects. Each sum that a submission asks for is read from an index of its own."""

import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from giornata.control.ports.user_queries import quota_store
from giornata.control.ports.user_queries.quota_store import CountedUse
from giornata.domain.generation.picture import ORDER_KINDS
from giornata.domain.jobs.job import JobState
from giornata.domain.jobs.sweep import SWEEP_KIND
from giornata.domain.rate_limit import CountedRequests, RequestCounts, ServerCounts
from giornata.store.database.rows import Queries
from giornata.store.schema import (
    artifacts,
    blobs,
    checkpoints,
    jobs,
    picture_orders,
    pictures,
    projects,
    request_counts,
    uploads,
)
from giornata.store.schema.pictures import OPEN_ORDER

# Constants in the text, because a planner cannot prove that a parameter matches a partial index.
COUNTED = sa.literal_column("jobs.state IN ('queued', 'running') AND jobs.only_machine_id IS NULL", sa.Boolean)
QUEUED = sa.and_(COUNTED, jobs.c.state == sa.literal_column(f"'{JobState.QUEUED}'"))
RUNNING = sa.and_(COUNTED, jobs.c.state == sa.literal_column(f"'{JobState.RUNNING}'"))
OWN = jobs.c.billed_to.is_(None)
OPEN_UPLOAD = sa.and_(uploads.c.completed_at_ms.is_(None), uploads.c.attempt_id.is_(None))
COUNTS_KEPT_MS = 60_000
"""Milliseconds for which the counts of a server that is gone are kept."""
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


def _exchange() -> sa.Select[Any]:
    """Return the statement that replaces the server's own row, deletes old ones and reads the others."""
    server, oldest = sa.bindparam("server", type_=sa.String()), sa.bindparam("oldest", type_=sa.BigInteger())
    is_other, at_ms = request_counts.c.server_id != server, request_counts.c.at_ms
    own = postgresql.insert(request_counts).values(
        server_id=server,
        at_ms=sa.bindparam("now", type_=sa.BigInteger()),
        counts=sa.bindparam("counts", type_=sa.JSON()),
    )
    own = own.on_conflict_do_update(
        index_elements=["server_id"], set_={"at_ms": own.excluded.at_ms, "counts": own.excluded.counts}
    )
    # Whoever deletes such a row now, or still writes it, is not waited for.
    old = sa.select(request_counts.c.server_id).where(is_other, at_ms < oldest).with_for_update(skip_locked=True)
    gone = sa.delete(request_counts).where(request_counts.c.server_id.in_(old))
    return sa.select(request_counts).where(is_other, at_ms >= oldest).add_cte(own.cte("own"), gone.cte("gone"))


_EXCHANGE = _exchange()


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

    def exchange_requests(self, server_id: str, counts: RequestCounts, *, at_ms: int) -> Mapping[str, ServerCounts]:
        listed = [[*name, each.rate_per_s, each.since_ms, each.taken] for name, each in counts.items()]
        values = {"server": server_id, "now": at_ms, "oldest": at_ms - COUNTS_KEPT_MS, "counts": listed}
        found = self._connection.execute(_EXCHANGE, values)
        return {row.server_id: ServerCounts(at_ms=row.at_ms, counts=_counts(row.counts)) for row in found}

    def forget_requests(self, server_id: str) -> None:
        self._connection.execute(sa.delete(request_counts).where(request_counts.c.server_id == server_id))

    def _sum(self, query: sa.Select[Any], project_id: str, **values: int) -> int:
        return int(self._connection.scalar(query, {"project": project_id, **values}) or 0)


def _try_lock(project_id: str) -> sa.Select[Any]:
    """Return the statement that takes the lock of this name until the transaction ends, if nobody has it."""
    key = zlib.crc32(f"{LOCK_SPACE}{project_id}".encode()) - 2**31
    return sa.select(sa.func.pg_try_advisory_xact_lock(key))


def _counts(listed: Sequence[tuple[str, str, int, int, int]]) -> RequestCounts:
    return {
        (kind, name): CountedRequests(rate_per_s=rate_per_s, since_ms=since_ms, taken=taken)
        for kind, name, rate_per_s, since_ms, taken in listed
    }
