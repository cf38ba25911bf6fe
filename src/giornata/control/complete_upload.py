"""A user says that all bytes are there."""

from giornata.control.context import Caller, Context
from giornata.control.permissions import require_user
from giornata.control.texts import is_id
from giornata.control.verify_upload import verify_upload
from giornata.domain.errors import NotFound
from giornata.protocol.uploads import Blob, CompleteUpload


def complete_upload(ctx: Context, caller: Caller, upload_id: str, request: CompleteUpload) -> Blob:
    """Verify the bytes and make them a blob of the project. May be repeated.

    Raises Forbidden, NotFound, BlobMissing when storage has no bytes, and BlobMismatch when it has others.
    """
    require_user(caller)
    with ctx.store.read() as tx:
        upload = tx.uploads.get(upload_id, project_id=caller.project_id) if is_id(upload_id) else None
    if upload is None or upload.attempt_id is not None:
        raise NotFound(f"there is no upload {upload_id}")
    verify_upload(ctx, caller.project_id, upload.sha256, upload.size_bytes, upload_id, request.etags)
    return Blob(sha256=upload.sha256, size_bytes=upload.size_bytes)
