"""Check that storage still has the bytes that a row names. Never in a transaction: reading takes its time."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from giornata.control.context import Context
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.records import BlobRecord, StandingRecord
from giornata.domain.errors import BlobMissing, Unavailable

AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundBytes:
    """The result of a look at `key`: the bytes that belong there, or something else or nothing, as `found` says.

    `news` is false when it was known from an earlier look.
    """

    sha256: str
    key: str
    good: bool
    found: str
    news: bool = True


def look_at_bytes(ctx: Context, project_id: str, sha256: str) -> FoundBytes:
    """Measure the bytes, and read them whole unless that was done a moment ago (`policy.doubted_again_s`).

    So that nobody can keep the server reading, few are read at a time. Raises Unavailable when it is too many, or
    when storage does not answer, and BlobMissing when the project knows of no such bytes.
    """
    with ctx.store.read() as tx:
        standing = tx.uploads.standing(project_id, sha256)
    if standing is None:
        raise BlobMissing(f"the project has no bytes with sha256 {sha256}")
    if standing.lost_at_ms is not None:
        return FoundBytes(sha256=sha256, key=standing.key, good=False, found="storage had lost it before", news=False)
    wrong = _wrong_size(ctx, standing.key, standing.size_bytes)
    if wrong is None and _looked_lately(ctx, standing):
        return FoundBytes(sha256=sha256, key=standing.key, good=True, found="it was good a moment ago", news=False)
    wrong = wrong or _wrong_bytes(ctx, standing.key, sha256)
    return FoundBytes(
        sha256=sha256, key=standing.key, good=wrong is None, found=wrong or "storage has the very bytes"
    )


def note_look(tx: Transaction, project_id: str, look: FoundBytes, *, at_ms: int) -> bool:
    """Write down what was found; False when something else lies there by now, so that the look says nothing."""
    if look.news:
        return tx.uploads.note_look(project_id, look.sha256, key=look.key, at_ms=at_ms, lost=not look.good)
    standing = tx.uploads.standing(project_id, look.sha256)
    return standing is not None and (standing.key, standing.lost_at_ms is None) == (look.key, look.good)


def missing(ctx: Context, blobs: Iterable[BlobRecord]) -> list[FoundBytes]:
    """Return looks at the blobs that storage has not, or not in their size, several at a time. Raises Unavailable."""
    blobs = list(blobs)

    def look(blob: BlobRecord) -> FoundBytes | None:
        wrong = _wrong_size(ctx, blob.key, blob.size_bytes)
        return None if wrong is None else FoundBytes(sha256=blob.sha256, key=blob.key, good=False, found=wrong)

    if len(blobs) < 2:
        looks = list(map(look, blobs))
    else:
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="look") as pool:
            looks = list(pool.map(look, blobs))
    return [each for each in looks if each is not None]


def _looked_lately(ctx: Context, standing: StandingRecord) -> bool:
    if standing.looked_at_ms is None:
        return False
    return 0 <= ctx.clock.now_ms() - standing.looked_at_ms < ctx.policy.doubted_again_s * 1000


def _wrong_size(ctx: Context, key: str, size_bytes: int) -> str | None:
    try:
        found = ctx.blobs.size(key)
    except BlobMissing:
        return "storage has it no more"
    return None if found == size_bytes else f"storage has {found} bytes, not {size_bytes}"


def _wrong_bytes(ctx: Context, key: str, sha256: str) -> str | None:
    if not ctx.memory.readers.acquire(blocking=False):
        raise Unavailable("the server is reading other files; try again in a moment")
    try:
        found = ctx.blobs.digest(key).sha256
    except BlobMissing:
        return "storage has it no more"
    finally:
        ctx.memory.readers.release()
    return None if found == sha256 else f"storage has bytes with sha256 {found}"
