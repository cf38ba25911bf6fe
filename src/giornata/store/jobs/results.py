"""Queries for committed checkpoints and artifacts of a job."""

import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.node_queries import work_store
from giornata.control.ports.node_queries.work_rows import ArtifactRow, BlobRow, CheckpointRow, JobRow
from giornata.store.database.rows import Queries, among, insert_for
from giornata.store.schema import artifacts, blobs, checkpoints

_THIS = (checkpoints.c.job_id == sa.bindparam("job")) & (checkpoints.c.step == sa.bindparam("at_step"))
_same_bytes = (blobs.c.project_id == checkpoints.c.project_id) & (blobs.c.sha256 == checkpoints.c.sha256)
# Made once: building a statement costs more than running it.
_ALL: sa.Select[Any] = (
    sa.select(
        checkpoints.c.step,
        checkpoints.c.attempt_number,
        checkpoints.c.rejected,
        checkpoints.c.doubted_by,
        checkpoints.c.pinned,
        checkpoints.c.sha256,
        checkpoints.c.size_bytes,
        blobs.c.key,
    )
    .join(blobs, _same_bytes)
    .where(checkpoints.c.job_id == sa.bindparam("job"))
    .order_by(checkpoints.c.step.desc())
)
_GET = _ALL.where(checkpoints.c.step == sa.bindparam("at_step"))
_REJECT = sa.update(checkpoints).where(_THIS).values(rejected=True)
_DOUBT = sa.update(checkpoints).where(_THIS).values(doubted_by=sa.bindparam("attempt"))
_DELETE = sa.delete(checkpoints).where(
    checkpoints.c.job_id == sa.bindparam("job"), checkpoints.c.step.in_(sa.bindparam("steps", expanding=True))
)
_BYTES = ("attempt_number", "sha256", "size_bytes", "rejected", "doubted_by", "created_at_ms")
_COLUMNS = tuple(artifacts.c[name] for name in ArtifactRow.__slots__)
# Made once: building a statement costs more than running it.
_OF_JOB = sa.select(*_COLUMNS).where(artifacts.c.job_id == sa.bindparam("wanted")).order_by(artifacts.c.name)
_RESULT = ("attempt_id", "sha256", "size_bytes", "media_type", "created_at_ms")


class Checkpoints(Queries, work_store.Checkpoints):
    def usable(self, job_id: str) -> Sequence[CheckpointRow]:
        return [row for row in self.all(job_id) if not row.rejected]

    def all(self, job_id: str) -> Sequence[CheckpointRow]:
        return [_checkpoint(row) for row in self._connection.execute(_ALL, {"job": job_id})]

    def get(self, job_id: str, step: int) -> CheckpointRow | None:
        row = self._connection.execute(_GET, {"job": job_id, "at_step": step}).first()
        return None if row is None else _checkpoint(row)

    def put(self, job: JobRow, *, step: int, sha256: str, size_bytes: int, attempt_number: int, at_ms: int) -> None:
        row = {
            "job_id": job.id,
            "step": step,
            "project_id": job.project_id,
            "attempt_number": attempt_number,
            "sha256": sha256,
            "size_bytes": size_bytes,
            "rejected": False,
            "doubted_by": None,
            "created_at_ms": at_ms,
        }
        self._connection.execute(_put(self._dialect_name), row)

    def reject(self, job_id: str, step: int) -> None:
        self._connection.execute(_REJECT, {"job": job_id, "at_step": step})

    def doubt(self, job_id: str, step: int, *, attempt_number: int) -> None:
        self._connection.execute(_DOUBT, {"job": job_id, "at_step": step, "attempt": attempt_number})

    def delete(self, job_id: str, steps: Sequence[int]) -> None:
        self._connection.execute(_DELETE, {"job": job_id, "steps": steps})


@functools.cache
def _put(dialect_name: str) -> Any:
    statement = insert_for(dialect_name, checkpoints)
    new = {name: statement.excluded[name] for name in _BYTES}
    return statement.on_conflict_do_update(index_elements=[checkpoints.c.job_id, checkpoints.c.step], set_=new)


def _checkpoint(row: sa.Row[Any]) -> CheckpointRow:
    return CheckpointRow(
        step=row.step,
        attempt_number=row.attempt_number,
        rejected=row.rejected,
        doubted_by=row.doubted_by,
        pinned=row.pinned,
        blob=BlobRow(sha256=row.sha256, size_bytes=row.size_bytes, key=row.key),
    )


class Artifacts(Queries, work_store.Artifacts):
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
        self._connection.execute(_put_artifact(self._dialect_name), row)

    def delete(self, job_id: str, names: Sequence[str]) -> None:
        self._connection.execute(
            sa.delete(artifacts).where(artifacts.c.job_id == job_id, artifacts.c.name.in_(names))
        )


@functools.cache
def _of_jobs(dialect_name: str) -> sa.Select[Any]:
    query = sa.select(artifacts.c.job_id, *_COLUMNS).where(among(dialect_name, artifacts.c.job_id, "wanted"))
    return query.order_by(artifacts.c.job_id, artifacts.c.name)


@functools.cache
def _put_artifact(dialect_name: str) -> Any:
    statement = insert_for(dialect_name, artifacts)
    new = {name: statement.excluded[name] for name in _RESULT}
    return statement.on_conflict_do_update(index_elements=[artifacts.c.job_id, artifacts.c.name], set_=new)
