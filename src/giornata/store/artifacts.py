"""Committed results."""

import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.work_rows import ArtifactRow, JobRow
from giornata.store.dialect_insert import insert_for
from giornata.store.row_list import among
from giornata.store.schema import artifacts

_COLUMNS = tuple(artifacts.c[name] for name in ArtifactRow.__slots__)
# Made once: building a statement costs more than running it.
_OF_JOB = sa.select(*_COLUMNS).where(artifacts.c.job_id == sa.bindparam("wanted")).order_by(artifacts.c.name)
_RESULT = ("attempt_id", "sha256", "size_bytes", "media_type", "created_at_ms")


class Artifacts:
    """See `giornata.control.ports.work_store.Artifacts`."""

    def __init__(self, connection: sa.Connection, dialect_name: str) -> None:
        self._connection = connection
        self._dialect_name = dialect_name

    def of_job(self, job_id: str) -> Sequence[ArtifactRow]:
        found = self._connection.execute(_OF_JOB, {"wanted": job_id})
        return [ArtifactRow(**row._mapping) for row in found]

    def of_jobs(self, job_ids: Sequence[str]) -> Mapping[str, Sequence[ArtifactRow]]:
        found: dict[str, list[ArtifactRow]] = defaultdict(list)
        for job_id, *row in self._connection.execute(_of_jobs(self._dialect_name), {"wanted": list(job_ids)}):
            found[job_id].append(ArtifactRow(**dict(zip(ArtifactRow.__slots__, row, strict=True))))
        return found

    def put(self, job: JobRow, artifact: ArtifactRow, *, media_type: str, at_ms: int) -> None:
        row = {
            "job_id": job.id,
            "name": artifact.name,
            "project_id": job.project_id,
            "attempt_id": artifact.attempt_id,
            "sha256": artifact.sha256,
            "size_bytes": artifact.size_bytes,
            "media_type": media_type,
            "created_at_ms": at_ms,
        }
        self._connection.execute(_put(self._dialect_name), row)

    def delete(self, job_id: str, names: Sequence[str]) -> None:
        self._connection.execute(
            sa.delete(artifacts).where(artifacts.c.job_id == job_id, artifacts.c.name.in_(names))
        )


@functools.cache
def _of_jobs(dialect_name: str) -> sa.Select[Any]:
    query = sa.select(artifacts.c.job_id, *_COLUMNS).where(among(dialect_name, artifacts.c.job_id, "wanted"))
    return query.order_by(artifacts.c.job_id, artifacts.c.name)


@functools.cache
def _put(dialect_name: str) -> Any:
    statement = insert_for(dialect_name, artifacts)
    new = {name: statement.excluded[name] for name in _RESULT}
    return statement.on_conflict_do_update(index_elements=[artifacts.c.job_id, artifacts.c.name], set_=new)
