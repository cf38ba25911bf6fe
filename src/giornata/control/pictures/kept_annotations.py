"""Annotations that a project keeps, as entries of its cache: what one node has made, another one downloads."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from giornata.control.context import Context
from giornata.control.ports.node_queries.picture_store import PictureRow
from giornata.control.ports.store import Transaction
from giornata.control.storage.signed_urls import download
from giornata.protocol.generation.annotators import ANNOTATION_ENTRY
from giornata.protocol.generation.preprocess import LeasedParams, annotation_keys
from giornata.protocol.node.pictures import ANNOTATION_ROLE, LeaseFile

NOTED_EVERY_MS = 3_600_000
"""The use of an entry is noted no more often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptAnnotations:
    """The annotations of a lease: files for those that the project has, and the keys of the others."""

    files: tuple[LeaseFile, ...] = ()
    wanted: tuple[str, ...] = ()


def kept_annotations(
    tx: Transaction, ctx: Context, order_id: str, drawn: Sequence[tuple[PictureRow, LeasedParams]]
) -> KeptAnnotations:
    """Return the annotations that the pictures of a lease need. `order_id` is the order of the lease's attempt.

    A node writes to the cache of that order's project alone. So annotations that pictures of another project need as
    well are left out: each project trusts its own nodes only. A lease without annotations costs no statement.
    """
    keys: dict[str, set[str]] = {}
    for row, params in drawn:
        for key in annotation_keys(params):
            keys.setdefault(key, set()).add(row.project_id)
    projects = {row.project_id for row, _ in drawn if row.order_id == order_id}
    own = sorted(key for key, users in keys.items() if users == projects)
    return _found(tx, ctx, projects.pop(), own) if own else KeptAnnotations()


def _found(tx: Transaction, ctx: Context, project_id: str, keys: Iterable[str]) -> KeptAnnotations:
    now_ms = ctx.clock.now_ms()
    entries = tx.uploads.caches(project_id, [ANNOTATION_ENTRY + key for key in keys])
    files, wanted = [], []
    for key in keys:
        entry = entries.get(ANNOTATION_ENTRY + key)
        if entry is None:
            wanted.append(key)
            continue
        if now_ms - entry.used_at_ms >= NOTED_EVERY_MS:
            tx.uploads.cache_used(project_id, ANNOTATION_ENTRY + key, at_ms=now_ms)
        kept = download(ctx, sha256=entry.sha256, size_bytes=entry.size_bytes, key=entry.key)
        files.append(LeaseFile(role=ANNOTATION_ROLE, name=key, download=kept))
    return KeptAnnotations(files=tuple(files), wanted=tuple(wanted))
