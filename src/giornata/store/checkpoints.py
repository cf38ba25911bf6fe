"""Committed checkpoints."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.work_rows import BlobRow, CheckpointRow, JobRow
from giornata.store.dialect_insert import insert_for
from giornata.store.schema import blobs, checkpoints


class Checkpoints:
    """See `giornata.control.ports.work_store.Checkpoints`."""

    def __init__(self, connection: sa.Connection, dialect_name: str) -> None:
        self._connection = connection
        self._dialect_name = dialect_name

    def usable(self, job_id: str) -> Sequence[CheckpointRow]:
        return [row for row in self.all(job_id) if not row.rejected]

    def all(self, job_id: str) -> Sequence[CheckpointRow]:
        found = _select().where(checkpoints.c.job_id == job_id).order_by(checkpoints.c.step.desc())
        return [_checkpoint(row) for row in self._connection.execute(found)]

    def get(self, job_id: str, step: int) -> CheckpointRow | None:
        found = _select().where(checkpoints.c.job_id == job_id, checkpoints.c.step == step)
        row = self._connection.execute(found).first()
        return None if row is None else _checkpoint(row)

    def put(self, job: JobRow, *, step: int, sha256: str, size_bytes: int, attempt_number: int, at_ms: int) -> None:
        bytes_of = {
            "attempt_number": attempt_number,
            "sha256": sha256,
            "size_bytes": size_bytes,
            "rejected": False,
            "doubted_by": None,
            "created_at_ms": at_ms,
        }
        self._connection.execute(
            insert_for(self._dialect_name, checkpoints)
            .values(job_id=job.id, step=step, project_id=job.project_id, **bytes_of)
            .on_conflict_do_update(index_elements=[checkpoints.c.job_id, checkpoints.c.step], set_=bytes_of)
        )

    def reject(self, job_id: str, step: int) -> None:
        self._connection.execute(
            sa.update(checkpoints)
            .where(checkpoints.c.job_id == job_id, checkpoints.c.step == step)
            .values(rejected=True)
        )

    def doubt(self, job_id: str, step: int, *, attempt_number: int) -> None:
        self._connection.execute(
            sa.update(checkpoints)
            .where(checkpoints.c.job_id == job_id, checkpoints.c.step == step)
            .values(doubted_by=attempt_number)
        )

    def delete(self, job_id: str, steps: Sequence[int]) -> None:
        self._connection.execute(
            sa.delete(checkpoints).where(checkpoints.c.job_id == job_id, checkpoints.c.step.in_(steps))
        )


def _select() -> sa.Select[Any]:
    same_bytes = (blobs.c.project_id == checkpoints.c.project_id) & (blobs.c.sha256 == checkpoints.c.sha256)
    return sa.select(
        checkpoints.c.step,
        checkpoints.c.attempt_number,
        checkpoints.c.rejected,
        checkpoints.c.doubted_by,
        checkpoints.c.sha256,
        checkpoints.c.size_bytes,
        blobs.c.key,
    ).join(blobs, same_bytes)


def _checkpoint(row: sa.Row[Any]) -> CheckpointRow:
    return CheckpointRow(
        step=row.step,
        attempt_number=row.attempt_number,
        rejected=row.rejected,
        doubted_by=row.doubted_by,
        blob=BlobRow(sha256=row.sha256, size_bytes=row.size_bytes, key=row.key),
    )
