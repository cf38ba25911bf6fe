"""Take the bytes of an upload from a sender that cannot reach the storage, and write them there."""

import hashlib
from collections.abc import Iterable, Iterator

from giornata.control.access.permissions import require_scope
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.ports.user_queries.records import UploadRecord
from giornata.control.text_limits import is_id
from giornata.domain.errors import BlobMismatch, Conflict, NotFound, TooLarge
from giornata.protocol.project.admin import Scope


def pass_upload(ctx: Context, caller: Caller, upload_id: str, chunks: Iterable[bytes]) -> None:
    """Write a user's upload into storage. It is completed as if the sender had put the bytes there.

    Only an upload in one piece is taken, so that fewer than 16 MiB are in memory. Nothing is stored unless size and
    sha256 are those that the upload was opened for. May be repeated. Raises Forbidden, NotFound, Conflict for an
    upload in parts, TooLarge, BlobMismatch, Unavailable.
    """
    upload = _upload(ctx, caller, upload_id)
    if upload.completed_at_ms is None:
        ctx.blobs.write(upload.key, _checked(upload, chunks))


def _upload(ctx: Context, caller: Caller, upload_id: str) -> UploadRecord:
    require_scope(caller, Scope.DATASETS)
    with ctx.store.read() as tx:
        upload = tx.uploads.get(upload_id, project_id=caller.project_id) if is_id(upload_id) else None
    if upload is None or upload.attempt_id is not None:
        raise NotFound(f"there is no upload {upload_id[:64]}")
    if upload.multipart_id is not None:
        raise Conflict(f"the upload {upload_id} is sent in parts: use giornata train DIR")
    return upload


def _checked(upload: UploadRecord, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the chunks. Raises TooLarge at the first byte too many, and BlobMismatch behind the last one."""
    hasher, size_bytes = hashlib.sha256(), 0
    for chunk in chunks:
        size_bytes += len(chunk)
        if size_bytes > upload.size_bytes:
            raise TooLarge(f"more than the {upload.size_bytes} bytes came that upload {upload.id} was opened for")
        hasher.update(chunk)
        yield chunk
    if (hasher.hexdigest(), size_bytes) != (upload.sha256, upload.size_bytes):
        raise BlobMismatch(
            f"upload {upload.id} was opened for {upload.size_bytes} bytes with sha256 {upload.sha256},"
            f" and {size_bytes} bytes with sha256 {hasher.hexdigest()} came; send them again"
        )
