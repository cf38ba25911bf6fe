"""Delete garbage: rows and objects that nothing refers to, and nothing will.

A row goes before its object, in a transaction that asks again whether anything refers to it. A collector that dies
between the two leaves an object without a row, which the next one finds. So nothing that is referred to is deleted,
and whatever is not is gone in the end; any number of collectors may run at once.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, dataclass
from datetime import datetime
from itertools import islice

from giornata.control.context import Context
from giornata.control.timestamps import instant

BATCH = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectReport:
    """The numbers of what was collected; true when anything was."""

    uploads: int = 0
    blobs: int = 0
    stray_objects: int = 0
    multiparts: int = 0
    leftovers: int = 0
    requests: int = 0
    models: int = 0
    checkpoints: int = 0
    order_models: int = 0
    node_models: int = 0
    audits: int = 0

    def __bool__(self) -> bool:
        return any(astuple(self))


def collect(ctx: Context) -> CollectReport:
    """Drop what is older than the policy says: uploads that nobody completed, models that nobody uses, bytes that
    nothing refers to, objects without a row, parts without an upload, remembered requests; half-written files of
    servers that were killed; what validations, audits and orders held that have ended; and what silent nodes said
    they hold. Raises Unavailable; repeat it later.
    """
    now_ms = ctx.clock.now_ms()
    before_ms = now_ms - round(ctx.policy.garbage_after_s * 1000)
    return CollectReport(
        checkpoints=_checkpoints(ctx),
        audits=_audits(ctx, now_ms - round(ctx.policy.audits.kept_s * 1000)),
        order_models=_order_models(ctx),
        models=_models(ctx, now_ms - round(ctx.policy.unused_models_kept_s * 1000)),
        uploads=_uploads(ctx, before_ms),
        blobs=_blobs(ctx, before_ms),
        stray_objects=_stray_objects(ctx, instant(before_ms)),
        multiparts=_multiparts(ctx, instant(before_ms)),
        leftovers=ctx.blobs.sweep_leftovers(),
        node_models=_node_models(ctx, before_ms),
        requests=_requests(ctx, now_ms - round(ctx.policy.idempotency_kept_s * 1000)),
    )


def _uploads(ctx: Context, before_ms: int) -> int:
    def some() -> int:
        with ctx.store.begin() as tx:
            taken = tx.garbage.take_uploads(created_before_ms=before_ms, limit=BATCH)
        for upload in taken:
            if upload.completed_at_ms is not None:
                continue  # its object is a blob's; one that is not is found among the stray ones
            if upload.multipart_id is not None:
                ctx.blobs.abort_multipart(upload.key, upload.multipart_id)
            ctx.blobs.delete(upload.key)
        return len(taken)

    return _until_none(some)


def _blobs(ctx: Context, before_ms: int) -> int:
    def some() -> int:
        with ctx.store.begin() as tx:
            keys = tx.garbage.take_blobs(created_before_ms=before_ms, limit=BATCH)
        for key in keys:
            ctx.blobs.delete(key)
        return len(keys)

    return _until_none(some)


def _stray_objects(ctx: Context, before: datetime) -> int:
    old = (found.key for found in ctx.blobs.list("") if found.modified_at < before)
    return sum(_delete_strays(ctx, keys) for keys in _batches(old))


def _delete_strays(ctx: Context, keys: list[str]) -> int:
    # A row is written before its object and goes before it, so a key without a row will never have one again.
    with ctx.store.read() as tx:
        strays = tx.garbage.unknown(keys)
    return sum(ctx.blobs.delete(key) for key in sorted(strays))


def _multiparts(ctx: Context, before: datetime) -> int:
    aborted = 0
    for stale in ctx.blobs.stale_multiparts(before):
        with ctx.store.read() as tx:
            if not tx.garbage.unknown([stale.key]):
                continue
        ctx.blobs.abort_multipart(stale.key, stale.upload)
        aborted += 1
    return aborted


def _models(ctx: Context, before_ms: int) -> int:
    def some() -> int:
        with ctx.store.begin() as tx:
            return tx.garbage.forget_models(used_before_ms=before_ms, limit=BATCH)

    return _until_none(some)


def _checkpoints(ctx: Context) -> int:
    def some() -> int:
        with ctx.store.begin() as tx:
            return tx.garbage.forget_checkpoints(limit=BATCH)

    return _until_none(some)


def _audits(ctx: Context, ended_before_ms: int) -> int:
    with ctx.store.begin() as tx:
        return tx.audits.release_old(ended_before_ms=ended_before_ms)


def _order_models(ctx: Context) -> int:
    def some() -> int:
        with ctx.store.begin() as tx:
            return tx.garbage.forget_order_models(limit=BATCH)

    return _until_none(some)


def _node_models(ctx: Context, before_ms: int) -> int:
    def some() -> int:
        with ctx.store.begin() as tx:
            return tx.routing.forget_silent(seen_before_ms=before_ms, limit=BATCH)

    return _until_none(some)


def _requests(ctx: Context, before_ms: int) -> int:
    def some() -> int:
        with ctx.store.begin() as tx:
            return tx.garbage.forget_requests(created_before_ms=before_ms, limit=BATCH)

    return _until_none(some)


def _until_none(some: Callable[[], int]) -> int:
    done = 0
    while count := some():
        done += count
    return done


def _batches(keys: Iterable[str]) -> Iterator[list[str]]:
    walk = iter(keys)
    while batch := list(islice(walk, BATCH)):
        yield batch
