"""Delete a dataset with the pictures that nothing else refers to."""

from giornata.control.access.permissions import require_scope
from giornata.control.audit_log.record import record_call
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.end_of_life.record_deletion import DATASET, record_deletion
from giornata.control.end_of_life.remove_bytes import remove_bytes
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.end_of_life_store import TakenRows
from giornata.control.text_limits import is_id
from giornata.domain.accounts.audit_log import AuditVerb
from giornata.domain.errors import Conflict, NotFound
from giornata.protocol.project.admin import Scope
from giornata.protocol.project.end_of_life import Deletion

SHOWN = 3


def delete_dataset(ctx: Context, caller: Caller, dataset_id: str) -> Deletion:
    """Delete a dataset of the caller's project. Pictures of other datasets stay, and so does what was trained on it.

    A server that dies in between leaves bytes that nothing refers to, which the collector finds. Raises Forbidden,
    NotFound, and Conflict for a dataset that is pinned, or that a job reads which has not ended.
    """
    require_scope(caller, Scope.DATASETS)
    project_id = caller.project_id
    with ctx.store.begin() as tx:
        pinned = tx.datasets.lock(dataset_id, project_id=project_id) if is_id(dataset_id) else None
        if pinned is None:
            raise NotFound(f"there is no dataset {dataset_id}")
        if pinned:
            raise Conflict(f"{dataset_id} is pinned; unpin it first: giornata unpin {dataset_id}")
        # Asked after the lock was had: who submits a job for the dataset holds its row.
        _refuse_used(tx, dataset_id, project_id)
        sha256s = tx.deletions.drop_dataset(dataset_id, project_id=project_id)
        line = record_deletion(tx, ctx, caller, what=DATASET, target_id=dataset_id, project_id=project_id)
        tx.deletions.finish(line.id, at_ms=line.asked_at_ms)
        record_call(tx, caller, AuditVerb.DATASET_DELETE, dataset_id, at_ms=line.asked_at_ms)
    freed = remove_bytes(ctx, project_id, TakenRows(sha256s=sha256s), asked_before_ms=line.asked_at_ms)
    with ctx.store.begin() as tx:
        tx.deletions.note(line.id, objects=freed.objects, size_bytes=freed.size_bytes)
    return Deletion(id=dataset_id, what=DATASET, objects=freed.objects, size_bytes=freed.size_bytes, finished=True)


def _refuse_used(tx: Transaction, dataset_id: str, project_id: str) -> None:
    users = tx.deletions.users_of_dataset(dataset_id, project_id=project_id, limit=SHOWN + 1)
    if users:
        named = ", ".join(users[:SHOWN]) + (" and others" if len(users) > SHOWN else "")
        what = "wait for their end, or cancel them"
        raise Conflict(f"{dataset_id} is read by jobs that have not ended: {named}; {what}")
