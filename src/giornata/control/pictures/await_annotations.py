"""Move pictures between the wait for an annotation and the wait for their drawing, by what their project keeps.

A picture is moved when a node keeps its annotation. A picture that waits although its annotation is kept is moved by
the next claim, and so is one whose annotation was collected.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from giornata.control.context import Context
from giornata.control.ports.node_queries.picture_store import OrderSpec, PictureKey, PictureRow
from giornata.control.ports.store import Transaction
from giornata.control.storage.uploads import commit_cache
from giornata.protocol.generation.annotators import ANNOTATION_ENTRY
from giornata.protocol.generation.awaited_annotations import (
    CONTROLNETS,
    QueueKeys,
    awaits_annotation,
    key_of,
    model_annotations,
    queue_keys,
)
from giornata.protocol.generation.expand import PictureKeys, keys_by_settings
from giornata.protocol.generation.preprocess import AnnotationParams
from giornata.protocol.node.work import CommitCache, Committed

KEYS_AT_ONCE = 1000


def keep_annotation(ctx: Context, attempt_id: str, key: str, commit: CommitCache) -> Committed:
    """Put verified bytes into the project's cache as `commit_cache` does, and queue the pictures for their drawing
    that waited for this annotation. Raises as `commit_cache`."""
    done = commit_cache(ctx, attempt_id, key, commit)
    if key.startswith(ANNOTATION_ENTRY):
        with ctx.store.begin() as tx:
            rows = tx.picture_leases.of_live_lease(attempt_id)
            if rows and awaits_annotation(rows[0].batch_key, rows[0].base_key):
                advance(tx, rows[0], lease=attempt_id)
    return done


def kept_of(tx: Transaction, project_id: str, needed: Iterable[AnnotationParams]) -> set[str]:
    """Return the keys of those annotations that the project keeps."""
    keys = sorted({key_of(each) for each in needed})
    kept: set[str] = set()
    for first in range(0, len(keys), KEYS_AT_ONCE):
        names = [ANNOTATION_ENTRY + key for key in keys[first : first + KEYS_AT_ONCE]]
        kept |= {name.removeprefix(ANNOTATION_ENTRY) for name in tx.uploads.caches(project_id, names)}
    return kept


def advance(tx: Transaction, first: PictureRow, *, lease: str) -> int:
    """Move the pictures that wait for the same annotation as `first`, in the queue or in this lease, as far as what
    their project keeps allows. Return how many were moved; they are in no lease any more."""
    found = tx.picture_leases.awaiting(first.batch_key, lease=lease)
    specs = tx.picture_orders.specs(sorted({row.order_id for row in found}))
    rows = [row for row in found if row.order_id in specs]
    needed = {row.key: _needed(row, specs) for row in rows}
    kept = kept_of(tx, first.project_id, (each for some in needed.values() for each in some))
    return len(_move(tx, rows, specs, needed, kept))


def without_unkept(
    tx: Transaction, pictures: Sequence[PictureRow], specs: Mapping[str, OrderSpec]
) -> list[PictureRow]:
    """Return the pictures of a new lease that can be drawn. Those whose annotations were collected wait for them
    again. A lease without annotations by models costs no statement."""
    # Lists, not generators: each step of a generator is a call, and a claim is made for each lease.
    controlled = [each for each in specs.values() if each.spec.get(CONTROLNETS)]
    if not controlled and not [row for row in pictures if CONTROLNETS in row.differs]:
        return list(pictures)
    needed = {row.key: found for row in pictures if (found := _needed(row, specs))}
    if not needed:
        return list(pictures)
    by_project: dict[str, list[AnnotationParams]] = defaultdict(list)
    for row in pictures:
        by_project[row.project_id] += needed.get(row.key, [])
    kept = {project_id: kept_of(tx, project_id, some) for project_id, some in by_project.items()}
    moved: set[PictureKey] = set()
    for project_id, there in kept.items():
        unkept = [
            row
            for row in pictures
            if row.project_id == project_id and any(key_of(each) not in there for each in needed.get(row.key, ()))
        ]
        moved |= _move(tx, unkept, specs, needed, there)
    return [row for row in pictures if row.key not in moved]


def _needed(row: PictureRow, specs: Mapping[str, OrderSpec]) -> list[AnnotationParams]:
    order = specs.get(row.order_id)
    return [] if order is None else model_annotations(order.kind, order.spec, row.differs)


def _move(
    tx: Transaction,
    rows: Iterable[PictureRow],
    specs: Mapping[str, OrderSpec],
    needed: Mapping[PictureKey, Sequence[AnnotationParams]],
    kept: set[str],
) -> set[PictureKey]:
    """Queue the pictures under the keys that they should have; return those whose keys changed."""
    drawing: dict[str, Callable[[Mapping[str, object]], PictureKeys]] = {}
    moves: dict[QueueKeys, list[PictureKey]] = defaultdict(list)
    for row in rows:
        if row.order_id not in drawing:
            drawing[row.order_id] = keys_by_settings(specs[row.order_id].spec)
        keys = drawing[row.order_id](row.differs)
        target = queue_keys(
            row.project_id, needed[row.key], kept=kept, drawing=QueueKeys(keys.batch_key, keys.base_key)
        )
        if target != (row.batch_key, row.base_key):
            moves[target].append(row.key)
    for target, some in sorted(moves.items()):
        tx.picture_leases.queue_as(some, batch_key=target.batch_key, base_key=target.base_key)
    return {key for some in moves.values() for key in some}
