"""Turn bytes in storage into a blob of a project: nothing that a sender claims is taken on trust."""

from collections.abc import Sequence

from giornata.control.context import Context
from giornata.control.ports.user_queries.records import BlobRecord, UploadRecord
from giornata.control.text_limits import is_id
from giornata.domain.errors import BlobMismatch, BlobMissing


def verify_upload(  # noqa: PLR0917 - one commit of bytes is these six
    ctx: Context, project_id: str, sha256: str, size_bytes: int, upload_id: str | None, etags: Sequence[str]
) -> None:
    """Make sure that the project has a blob of this sha256 and size, from the upload if there is one.

    Joins the parts, reads back what storage has, and compares. Idempotent. The blob is kept from the collector for
    `policy.garbage_after_s`: time enough to refer to it. Raises BlobMissing when the bytes (or, without an upload,
    the blob) are not there, and BlobMismatch when they are others, which are deleted.
    """
    upload = None if upload_id is None else _upload(ctx, project_id, upload_id)
    if upload is None or upload.completed_at_ms is not None:
        _require_blob(ctx, project_id, sha256, size_bytes)
        return
    if (upload.sha256, upload.size_bytes) != (sha256, size_bytes):
        raise BlobMismatch(
            f"upload {upload.id} was opened for {_named(upload.sha256, upload.size_bytes)}, "
            f"not for {_named(sha256, size_bytes)}"
        )
    try:
        if upload.multipart_id is not None:
            ctx.blobs.complete_multipart(upload.key, upload.multipart_id, etags)
        _compare(ctx, upload)
    except BlobMissing:
        # A repeat of this request may have been quicker, and have dropped bytes that were there twice.
        now = _upload(ctx, project_id, upload.id)
        if now is None or now.completed_at_ms is None:
            raise
        _require_blob(ctx, project_id, sha256, size_bytes)
        return
    _accept(ctx, upload)


def _upload(ctx: Context, project_id: str, upload_id: str) -> UploadRecord | None:
    if not is_id(upload_id):
        return None
    with ctx.store.read() as tx:
        return tx.uploads.get(upload_id, project_id=project_id)


def _require_blob(ctx: Context, project_id: str, sha256: str, size_bytes: int) -> None:
    with ctx.store.begin() as tx:
        blob = tx.uploads.blobs(project_id, [sha256]).get(sha256)
        tx.uploads.touch_blobs(project_id, [sha256], at_ms=ctx.clock.now_ms())
    if blob is None:
        raise BlobMissing(f"the project has no bytes with sha256 {sha256}; upload them first")
    if blob.size_bytes != size_bytes:
        raise BlobMismatch(f"named were {_named(sha256, size_bytes)}, but these bytes are {blob.size_bytes}")


def _compare(ctx: Context, upload: UploadRecord) -> None:
    stored = ctx.blobs.digest(upload.key)
    if (stored.sha256, stored.size_bytes) == (upload.sha256, upload.size_bytes):
        return
    # The row goes first: what is left of the bytes then is garbage that the collector finds.
    with ctx.store.begin() as tx:
        tx.uploads.drop(upload.id, project_id=upload.project_id)
    ctx.blobs.delete(upload.key)
    raise BlobMismatch(
        f"named were {_named(upload.sha256, upload.size_bytes)}, but storage received "
        f"{_named(stored.sha256, stored.size_bytes)}; they were deleted: ask for a new upload and send them again"
    )


def _accept(ctx: Context, upload: UploadRecord) -> None:
    now_ms = ctx.clock.now_ms()
    blob = BlobRecord(sha256=upload.sha256, size_bytes=upload.size_bytes, key=upload.key, inspection=None)
    with ctx.store.begin() as tx:
        if not tx.uploads.complete(upload.id, project_id=upload.project_id, at_ms=now_ms):
            raise BlobMissing(f"upload {upload.id} was given up for lost; ask for a new one")
        stands_at = tx.uploads.add_blob(upload.project_id, blob, at_ms=now_ms)
    if stands_at != upload.key:
        ctx.blobs.delete(upload.key)  # the same bytes came in twice; one copy is enough


def _named(sha256: str, size_bytes: int) -> str:
    return f"{size_bytes} bytes with sha256 {sha256}"
