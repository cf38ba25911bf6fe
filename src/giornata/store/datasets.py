"""Queries for datasets with their items, and for what a job reads of them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import sqlalchemy as sa

from giornata.control.ports.node_queries import work_store
from giornata.control.ports.node_queries.work_rows import BlobRow, InputRow
from giornata.control.ports.user_queries import user_store
from giornata.control.ports.user_queries.records import DatasetRecord, ItemRecord, Rows
from giornata.control.ports.user_queries.user_store import Before
from giornata.store.database.bounded_pages import bounded, rows_of, size_of
from giornata.store.database.rows import Queries, columns, insert_unless_there, record_of
from giornata.store.schema import blobs, dataset_items, datasets, job_inputs

COLUMNS = columns(datasets, DatasetRecord)
ROW_BYTES = 200  # of a reply, besides texts and documents
ITEM_COLUMNS = columns(dataset_items, ItemRecord)
# Made once: building a statement costs more than running it.
_GET = sa.select(*COLUMNS).where(
    datasets.c.id == sa.bindparam("wanted"), datasets.c.project_id == sa.bindparam("project")
)
# Those who submit for one dataset do not wait for each other; who deletes it waits for them.
_HOLD = _GET.with_for_update(read=True, key_share=True)
_LOCK = (
    sa.select(datasets.c.pinned)
    .where(datasets.c.id == sa.bindparam("wanted"), datasets.c.project_id == sa.bindparam("project"))
    .with_for_update()
)
_ITEMS = (
    sa.select(*ITEM_COLUMNS)
    .where(
        dataset_items.c.dataset_id == sa.bindparam("wanted"), dataset_items.c.project_id == sa.bindparam("project")
    )
    .order_by(dataset_items.c.position)
)
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


class Datasets(Queries, user_store.Datasets):
    def add(self, dataset: DatasetRecord, items: Sequence[ItemRecord]) -> bool:
        statement = insert_unless_there(self._dialect_name, datasets, **asdict(dataset))
        if self._connection.execute(statement).first() is None:
            return False
        owner = {"dataset_id": dataset.id, "project_id": dataset.project_id}
        rows = [asdict(item) | owner | {"position": position} for position, item in enumerate(items)]
        self._connection.execute(sa.insert(dataset_items), rows)
        return True

    def get(self, dataset_id: str, *, project_id: str) -> DatasetRecord | None:
        row = self._connection.execute(_GET, {"wanted": dataset_id, "project": project_id}).first()
        return None if row is None else record_of(DatasetRecord, row)

    def hold(self, dataset_id: str, *, project_id: str) -> DatasetRecord | None:
        row = self._connection.execute(_HOLD, {"wanted": dataset_id, "project": project_id}).first()
        return None if row is None else record_of(DatasetRecord, row)

    def lock(self, dataset_id: str, *, project_id: str) -> bool | None:
        pinned: bool | None = self._connection.scalar(_LOCK, {"wanted": dataset_id, "project": project_id})
        return pinned

    def items(self, dataset_id: str, *, project_id: str) -> list[ItemRecord]:
        found = self._connection.execute(_ITEMS, {"wanted": dataset_id, "project": project_id})
        return [record_of(ItemRecord, row) for row in found]

    def page(self, *, project_id: str, before: Before, limit: int, most_bytes: int) -> Rows[DatasetRecord]:
        wanted = sa.select(datasets.c.id, datasets.c.project_id, datasets.c.created_at_ms)
        wanted = wanted.where(datasets.c.project_id == project_id)
        if before is not None:
            wanted = wanted.where(sa.tuple_(datasets.c.created_at_ms, datasets.c.id) < before)
        query = bounded(
            datasets,
            COLUMNS,
            wanted,
            order=(datasets.c.created_at_ms, datasets.c.id),
            newest_first=True,
            size=size_of(datasets.c.labels, datasets.c.notes) + ROW_BYTES,
            limit=limit,
            most_bytes=most_bytes,
        )
        return rows_of(DatasetRecord, self._connection.execute(query).all())


class Inputs(Queries, work_store.Inputs):
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
