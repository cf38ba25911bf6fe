"""An attempt asks for places to put bytes. Its keys hold its id, so that no attempt can touch another's objects."""

from giornata.control.context import Context
from giornata.control.open_uploads import Uploader, open_uploads, renew
from giornata.control.ports.store import Transaction
from giornata.domain.errors import LeaseLost
from giornata.protocol.uploads import RenewParts, UploadReply, UploadRequest, UploadTicket


def request_attempt_uploads(ctx: Context, attempt_id: str, request: UploadRequest) -> UploadReply:
    """Tickets for an attempt that has not ended. Raises LeaseLost, InvalidInput."""
    return open_uploads(ctx, _attempt_uploader(attempt_id), request)


def renew_attempt_upload(ctx: Context, attempt_id: str, upload_id: str, request: RenewParts) -> UploadTicket:
    """Fresh URLs for an upload of this very attempt. Raises LeaseLost, NotFound, InvalidInput."""
    return renew(ctx, _attempt_uploader(attempt_id), upload_id, request)


def live_project(tx: Transaction, attempt_id: str) -> str:
    """The project that the attempt works for. Raises LeaseLost when the attempt has ended or never was."""
    project_id = tx.uploads.live_attempt_project(attempt_id)
    if project_id is None:
        raise LeaseLost(f"attempt {attempt_id} has ended")
    return project_id


def _attempt_uploader(attempt_id: str) -> Uploader:
    return Uploader(project_id=lambda tx: live_project(tx, attempt_id), attempt_id=attempt_id)
