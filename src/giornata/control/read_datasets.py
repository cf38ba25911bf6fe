"""Looking at datasets."""

from giornata.control.context import Caller, Context
from giornata.control.create_dataset import dataset_reply
from giornata.control.pages import check_limit, decode_cursor, next_cursor
from giornata.control.permissions import require_user
from giornata.control.texts import is_id
from giornata.domain.errors import NotFound
from giornata.protocol.uploads import Dataset, DatasetPage


def get_dataset(ctx: Context, caller: Caller, dataset_id: str) -> Dataset:
    """A dataset with its items. Raises Forbidden, NotFound."""
    require_user(caller)
    with ctx.store.read() as tx:
        dataset = tx.datasets.get(dataset_id, project_id=caller.project_id) if is_id(dataset_id) else None
        if dataset is None:
            raise NotFound(f"there is no dataset {dataset_id}")
        return dataset_reply(dataset, tx.datasets.items(dataset_id, project_id=caller.project_id))


def list_datasets(ctx: Context, caller: Caller, cursor: str | None, limit: int) -> DatasetPage:
    """Datasets of the project without their items, newest first. Raises Forbidden, InvalidInput."""
    require_user(caller)
    check_limit(limit)
    with ctx.store.read() as tx:
        rows = tx.datasets.page(
            project_id=caller.project_id,
            before=decode_cursor(cursor),
            limit=limit,
            most_bytes=ctx.policy.max_page_bytes,
        )
    following = next_cursor(rows, lambda dataset: (dataset.created_at_ms, dataset.id))
    return DatasetPage(items=tuple(map(dataset_reply, rows.items)), next=following)
