"""A user's URLs ran out before the bytes were through."""

from giornata.control.context import Caller, Context
from giornata.control.open_uploads import renew
from giornata.control.permissions import require_user
from giornata.control.request_uploads import user_uploader
from giornata.protocol.uploads import RenewParts, UploadTicket


def renew_upload(ctx: Context, caller: Caller, upload_id: str, request: RenewParts) -> UploadTicket:
    """Fresh URLs for parts of an open upload. Raises Forbidden, NotFound, InvalidInput."""
    require_user(caller)
    return renew(ctx, user_uploader(caller), upload_id, request)
