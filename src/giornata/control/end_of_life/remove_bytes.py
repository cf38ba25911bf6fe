"""Delete in storage what deleted rows named, and nothing that another row names.

A row goes before its object. A server that dies in between leaves an object without a row, which the collector finds.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from giornata.control.context import Context
from giornata.control.ports.user_queries.end_of_life_store import TakenBlob, TakenRows
from giornata.control.ports.user_queries.records import UploadRecord

AT_ONCE = 500
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Freed:
    """The objects that storage does not have any more."""

    objects: int = 0
    size_bytes: int = 0

    def __add__(self, other: "Freed") -> "Freed":
        return Freed(objects=self.objects + other.objects, size_bytes=self.size_bytes + other.size_bytes)


def remove_bytes(ctx: Context, project_id: str, taken: TakenRows, *, asked_before_ms: int) -> Freed:
    """Delete the bytes of rows that are gone.

    A blob that was requested after `asked_before_ms` stays for the collector: a request may be about to refer to it.
    Raises Unavailable; the collector finds what is left.
    """
    freed = Freed()
    for sha256s in in_batches(sorted(taken.sha256s)):
        with ctx.store.begin() as tx:
            blobs = tx.deletions.take_blobs(project_id, sha256s=sha256s, asked_before_ms=asked_before_ms)
        freed += _delete_each(ctx, blobs)
    _drop_uploads(ctx, taken.uploads)
    for objects in in_batches(taken.objects.items()):
        freed += _delete_unknown(ctx, dict(objects))
    return freed


def remove_below(ctx: Context, project_id: str, prefix: str, *, asked_before_ms: int) -> Freed:
    """Delete all objects whose keys begin so, but for those that a row needs. Raises Unavailable."""
    freed = Freed()
    for listed in in_batches(ctx.blobs.list(prefix)):
        objects = {found.key: found.size_bytes for found in listed}
        with ctx.store.begin() as tx:
            tx.deletions.take_blobs(project_id, keys=list(objects), asked_before_ms=asked_before_ms)
        freed += _delete_unknown(ctx, objects)
    return freed


def _delete_each(ctx: Context, blobs: Sequence[TakenBlob]) -> Freed:
    deleted = [blob.size_bytes for blob in blobs if ctx.blobs.delete(blob.key)]
    return Freed(objects=len(deleted), size_bytes=sum(deleted))


def _delete_unknown(ctx: Context, objects: Mapping[str, int]) -> Freed:
    """Delete objects that no row names any more. A key without a row never has one again."""
    with ctx.store.read() as tx:
        strays = tx.garbage.unknown(list(objects))
    deleted = [objects[key] for key in sorted(strays) if ctx.blobs.delete(key)]
    return Freed(objects=len(deleted), size_bytes=sum(deleted))


def _drop_uploads(ctx: Context, uploads: Iterable[UploadRecord]) -> None:
    for upload in uploads:
        if upload.multipart_id is not None:
            ctx.blobs.abort_multipart(upload.key, upload.multipart_id)
        ctx.blobs.delete(upload.key)


def in_batches(some: Iterable[_T]) -> Iterator[list[_T]]:
    """Yield lists of at most AT_ONCE."""
    walk = iter(some)
    while batch := list(islice(walk, AT_ONCE)):
        yield batch
