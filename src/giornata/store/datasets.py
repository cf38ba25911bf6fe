"""Datasets and their items."""

from collections.abc import Sequence
from dataclasses import asdict

import sqlalchemy as sa

from giornata.control.ports.records import DatasetRecord, ItemRecord
from giornata.control.ports.user_store import Before
from giornata.store.record_columns import columns, record_of
from giornata.store.schema import dataset_items, datasets
from giornata.store.upsert import insert_unless_there

COLUMNS = columns(datasets, DatasetRecord)
ITEM_COLUMNS = columns(dataset_items, ItemRecord)

# Made once: building a statement costs more than running it.
_GET = sa.select(*COLUMNS).where(
    datasets.c.id == sa.bindparam("wanted"), datasets.c.project_id == sa.bindparam("project")
)
_ITEMS = (
    sa.select(*ITEM_COLUMNS)
    .where(
        dataset_items.c.dataset_id == sa.bindparam("wanted"), dataset_items.c.project_id == sa.bindparam("project")
    )
    .order_by(dataset_items.c.position)
)


class DatasetQueries:
    """Implements `giornata.control.ports.user_store.Datasets`."""

    def __init__(self, connection: sa.Connection, dialect_name: str) -> None:
        self._connection, self._dialect_name = connection, dialect_name

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

    def items(self, dataset_id: str, *, project_id: str) -> list[ItemRecord]:
        found = self._connection.execute(_ITEMS, {"wanted": dataset_id, "project": project_id})
        return [record_of(ItemRecord, row) for row in found]

    def page(self, *, project_id: str, before: Before, limit: int) -> list[DatasetRecord]:
        query = sa.select(*COLUMNS).where(datasets.c.project_id == project_id)
        if before is not None:
            query = query.where(sa.tuple_(datasets.c.created_at_ms, datasets.c.id) < before)
        query = query.order_by(datasets.c.created_at_ms.desc(), datasets.c.id.desc()).limit(limit)
        return [record_of(DatasetRecord, row) for row in self._connection.execute(query)]
