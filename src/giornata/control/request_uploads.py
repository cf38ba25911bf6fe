"""A user asks for places to put bytes."""

from giornata.control.context import Caller, Context
from giornata.control.open_uploads import Uploader, open_uploads
from giornata.control.permissions import require_user
from giornata.protocol.uploads import UploadReply, UploadRequest


def request_uploads(ctx: Context, caller: Caller, request: UploadRequest) -> UploadReply:
    """Tickets for the files that the project does not have yet; see `open_uploads`.

    Raises Forbidden, InvalidInput.
    """
    require_user(caller)
    return open_uploads(ctx, user_uploader(caller), request)


def user_uploader(caller: Caller) -> Uploader:
    """Uploads of users belong to no attempt."""
    return Uploader(project_id=lambda _tx: caller.project_id, attempt_id=None)
