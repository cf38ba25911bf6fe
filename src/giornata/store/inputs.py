"""What a job reads."""

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from giornata.control.ports.work_rows import BlobRow, InputRow
from giornata.store.schema import blobs, dataset_items, job_inputs

# Made once: building a statement costs more than running it.
_OF_DATASET = (
    sa.select(
        dataset_items.c.name,
        dataset_items.c.caption,
        dataset_items.c.repeats,
        dataset_items.c.resolution,
        dataset_items.c.sha256,
        blobs.c.size_bytes,
        blobs.c.key,
    )
    .join(blobs, (blobs.c.project_id == dataset_items.c.project_id) & (blobs.c.sha256 == dataset_items.c.sha256))
    .where(
        dataset_items.c.dataset_id == sa.bindparam("wanted"), dataset_items.c.project_id == sa.bindparam("project")
    )
    .order_by(dataset_items.c.position)
)
_OF_JOB = (
    sa.select(job_inputs.c.role, job_inputs.c.sha256, blobs.c.size_bytes, blobs.c.key)
    .join(blobs, (blobs.c.project_id == job_inputs.c.project_id) & (blobs.c.sha256 == job_inputs.c.sha256))
    .where(job_inputs.c.job_id == sa.bindparam("wanted"), job_inputs.c.project_id == sa.bindparam("project"))
)


class Inputs:
    """See `giornata.control.ports.work_store.Inputs`."""

    def __init__(self, connection: sa.Connection, dialect_name: str) -> None:
        self._connection = connection
        self._dialect_name = dialect_name

    def of_dataset(self, project_id: str, dataset_id: str) -> Sequence[InputRow]:
        found = self._connection.execute(_OF_DATASET, {"wanted": dataset_id, "project": project_id})
        return [
            InputRow(
                name=row.name,
                caption=row.caption,
                repeats=row.repeats,
                resolution=row.resolution,
                blob=BlobRow(sha256=row.sha256, size_bytes=row.size_bytes, key=row.key),
            )
            for row in found
        ]

    def of_job(self, project_id: str, job_id: str) -> Mapping[str, BlobRow]:
        found = self._connection.execute(_OF_JOB, {"wanted": job_id, "project": project_id})
        return {row.role: BlobRow(sha256=row.sha256, size_bytes=row.size_bytes, key=row.key) for row in found}
