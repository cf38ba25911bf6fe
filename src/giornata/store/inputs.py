"""What a job reads."""

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from giornata.control.ports.work_rows import BlobRow, InputRow
from giornata.store.schema import blobs, dataset_items, job_inputs


class Inputs:
    """See `giornata.control.ports.work_store.Inputs`."""

    def __init__(self, connection: sa.Connection, dialect_name: str) -> None:
        self._connection = connection
        self._dialect_name = dialect_name

    def of_dataset(self, project_id: str, dataset_id: str) -> Sequence[InputRow]:
        items = dataset_items
        same_bytes = (blobs.c.project_id == items.c.project_id) & (blobs.c.sha256 == items.c.sha256)
        found = (
            sa.select(items.c.name, items.c.caption, items.c.repeats, items.c.sha256, blobs.c.size_bytes, blobs.c.key)
            .join(blobs, same_bytes)
            .where(items.c.dataset_id == dataset_id, items.c.project_id == project_id)
            .order_by(items.c.position)
        )
        return [
            InputRow(
                name=row.name,
                caption=row.caption,
                repeats=row.repeats,
                blob=BlobRow(sha256=row.sha256, size_bytes=row.size_bytes, key=row.key),
            )
            for row in self._connection.execute(found)
        ]

    def of_job(self, project_id: str, job_id: str) -> Mapping[str, BlobRow]:
        same_bytes = (blobs.c.project_id == job_inputs.c.project_id) & (blobs.c.sha256 == job_inputs.c.sha256)
        found = (
            sa.select(job_inputs.c.role, job_inputs.c.sha256, blobs.c.size_bytes, blobs.c.key)
            .join(blobs, same_bytes)
            .where(job_inputs.c.job_id == job_id, job_inputs.c.project_id == project_id)
        )
        return {
            row.role: BlobRow(sha256=row.sha256, size_bytes=row.size_bytes, key=row.key)
            for row in self._connection.execute(found)
        }
