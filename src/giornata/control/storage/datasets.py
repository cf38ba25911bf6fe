"""Create, read and list datasets."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict

from giornata.control.access.permissions import require_any, require_scope
from giornata.control.audit_log.record import record_call
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.pages import check_limit, decode_cursor, next_cursor
from giornata.control.ports.user_queries.records import BlobRecord, DatasetRecord, ItemRecord, ProjectRecord
from giornata.control.storage.inspect_blobs import inspect_blobs
from giornata.control.storage.item_faults import item_faults, missing_faults
from giornata.control.text_limits import is_id, label_faults
from giornata.control.timestamps import instant
from giornata.domain.accounts.audit_log import AuditVerb
from giornata.domain.errors import InvalidInput, NotFound
from giornata.domain.files.datasets import usage_words
from giornata.protocol.project.admin import Scope
from giornata.protocol.uploads import CreateDataset, Dataset, DatasetItem, DatasetPage


def create_dataset(ctx: Context, caller: Caller, request: CreateDataset) -> Dataset:
    """Inspect the pictures and keep the list. The same items give the same id, and creating it again changes nothing.

    Raises Forbidden, and InvalidInput with every fault of every item: captions, names, counts, bytes that the
    project does not have, pictures that cannot be trained on.
    """
    require_scope(caller, Scope.DATASETS)
    with ctx.store.read() as tx:
        most = max_pictures_of(ctx, tx.projects.get(caller.project_id))
    faults = [*item_faults(ctx.policy, request.items, max_pictures=most), *label_faults(request.labels)]
    items = list(dict.fromkeys(request.items))
    blobs = _blobs(ctx, caller, items)
    faults += missing_faults(ctx.policy, items, blobs)
    found, notes = inspect_blobs(ctx, caller.project_id, items, blobs)
    if faults := [*faults, *found]:
        raise InvalidInput(faults)
    dataset = DatasetRecord(
        id=dataset_id(items),
        project_id=caller.project_id,
        labels=request.labels,
        notes=[*_twins(items), *notes],
        picture_count=len(items),
        size_bytes=sum(blobs[sha256].size_bytes for sha256 in {item.sha256 for item in items}),
        created_at_ms=ctx.clock.now_ms(),
        created_by=caller.maker,
    )
    rows = [ItemRecord(**item.model_dump()) for item in items]
    with ctx.store.begin() as tx:
        if tx.datasets.add(dataset, rows):
            changes = {"pictures": dataset.picture_count, "size_bytes": dataset.size_bytes}
            record_call(
                tx, caller, AuditVerb.DATASET_CREATE, dataset.id, at_ms=dataset.created_at_ms, changes=changes
            )
        stands = tx.datasets.get(dataset.id, project_id=caller.project_id) or dataset
        rows = tx.datasets.items(dataset.id, project_id=caller.project_id)
    return dataset_reply(stands, rows)


def dataset_id(items: Sequence[DatasetItem]) -> str:
    """Return `ds_` and 32 hex digits of the sha256 over the items, whatever their order."""
    canonical = sorted(
        [item.sha256, item.name, item.caption or "", *usage_words(item.repeats, item.resolution)] for item in items
    )
    return "ds_" + hashlib.sha256(json.dumps(canonical, separators=(",", ":")).encode()).hexdigest()[:32]


def dataset_reply(dataset: DatasetRecord, items: Sequence[ItemRecord] = ()) -> Dataset:
    """Return a dataset as its project sees it."""
    return Dataset(
        id=dataset.id,
        created_at=instant(dataset.created_at_ms),
        created_by=dataset.created_by,
        picture_count=dataset.picture_count,
        size_bytes=dataset.size_bytes,
        notes=tuple(dataset.notes),
        items=tuple(DatasetItem(**asdict(item)) for item in items),
    )


def _blobs(ctx: Context, caller: Caller, items: Sequence[DatasetItem]) -> dict[str, BlobRecord]:
    wanted = sorted({item.sha256 for item in items})
    with ctx.store.begin() as tx:
        # Kept from the collector while the pictures are being looked at.
        tx.uploads.touch_blobs(caller.project_id, wanted, at_ms=ctx.clock.now_ms())
        return tx.uploads.blobs(caller.project_id, wanted)


def _twins(items: Sequence[DatasetItem]) -> list[str]:
    first: dict[str, str] = {}
    notes = []
    for item in items:
        if first.setdefault(item.sha256, item.name) != item.name:
            notes.append(f"{item.name}: the same picture as {first[item.sha256]}")
    return notes


def get_dataset(ctx: Context, caller: Caller, dataset_id: str) -> Dataset:
    """Return a dataset with its items. Raises Forbidden, NotFound."""
    require_any(caller, Scope.JOBS_READ, Scope.DATASETS)
    with ctx.store.read() as tx:
        dataset = tx.datasets.get(dataset_id, project_id=caller.project_id) if is_id(dataset_id) else None
        if dataset is None:
            raise NotFound(f"there is no dataset {dataset_id}")
        return dataset_reply(dataset, tx.datasets.items(dataset_id, project_id=caller.project_id))


def list_datasets(ctx: Context, caller: Caller, cursor: str | None, limit: int) -> DatasetPage:
    """Return datasets of the project without their items, newest first. Raises Forbidden, InvalidInput."""
    require_any(caller, Scope.JOBS_READ, Scope.DATASETS)
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


def max_pictures_of(ctx: Context, project: ProjectRecord | None) -> int:
    """Return the most pictures of a dataset: the project's own limit, or else the installation's."""
    own = None if project is None else project.max_pictures
    return ctx.policy.max_pictures if own is None else own
