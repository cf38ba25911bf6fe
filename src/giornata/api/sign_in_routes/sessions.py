"""Routes of signing in and out, of the caller's sessions, and of what the caller may do.

Passwords are hashed in a few threads of their own: however many people sign in, other requests do not wait.
"""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response, status

from giornata.api.replies.openapi import USER, USER_ITEM, refusals
from giornata.api.requests.callers import Ctx, ReadLists, User
from giornata.api.requests.lists import Cursor, Limit
from giornata.control.access import me
from giornata.control.access.invitations import accept_invitation
from giornata.control.access.signing_in import sessions, sign_in
from giornata.control.access.signing_in.sessions import OpenedSession, require_person
from giornata.control.notifications import own_notifications
from giornata.domain.errors import Unauthenticated
from giornata.protocol.account.notifications import Notifications, SetNotifications
from giornata.protocol.account.people import AcceptInvitation, ChangePassword, Me, SessionPage, SignedIn, SignIn
from giornata.protocol.strict_json import Json
from giornata.web.session_cookies import clear_cookie, session_secret, set_cookie
from giornata.web.visitors import visitor_of, with_password

router = APIRouter(prefix="/v1", tags=["people"])
SIGN_IN = refusals(401, 429)


@router.post("/session", status_code=status.HTTP_201_CREATED, responses=SIGN_IN)
async def open_session(request: Request, response: Response, ctx: Ctx, body: Json[SignIn]) -> SignedIn:
    """Sign in. The session comes as a cookie that no script can read; the reply has the CSRF token."""
    earlier = session_secret(request)
    opened = await with_password(request, partial(sign_in.sign_in, ctx, body, visitor_of(request), earlier=earlier))
    return _replied(request, response, opened)


@router.post("/invitations/accept", status_code=status.HTTP_201_CREATED, responses=refusals(401, 404, 409, 429))
async def accept(request: Request, response: Response, ctx: Ctx, body: Json[AcceptInvitation]) -> SignedIn:
    """Join a project by an invitation, and sign in."""
    earlier = session_secret(request)
    opened = await with_password(request, partial(accept_invitation, ctx, body, visitor_of(request), earlier=earlier))
    return _replied(request, response, opened)


@router.get("/session", responses=USER)
def get_session(request: Request, ctx: Ctx, caller: User) -> SignedIn:
    """Return the session of this request, with its CSRF token."""
    require_person(caller)
    secret = session_secret(request)
    if secret is None:
        raise Unauthenticated(sessions.REFUSAL)
    return sessions.read_session(ctx, caller, secret)


@router.delete("/session", status_code=status.HTTP_204_NO_CONTENT, responses=USER)
def close_session(request: Request, ctx: Ctx, caller: User) -> Response:
    """Sign out: the session of this request ends."""
    sessions.end_session(ctx, caller, caller.key_id)
    response = Response(status_code=status.HTTP_204_NO_CONTENT)
    clear_cookie(request, response)
    return response


@router.get("/sessions", responses=USER, response_model=SessionPage)
async def list_sessions(
    ctx: Ctx, lists: ReadLists, caller: User, cursor: Cursor = None, limit: Limit = 100
) -> Response:
    """Return the caller's sessions that have not ended."""
    return await lists.page(sessions.list_sessions, ctx, caller, cursor, limit)


@router.delete("/sessions/{session_id}", status_code=status.HTTP_204_NO_CONTENT, responses=USER_ITEM)
def end_session(ctx: Ctx, caller: User, session_id: Annotated[str, Path(max_length=64)]) -> Response:
    """End one of the caller's sessions. Repeating it changes nothing."""
    sessions.end_session(ctx, caller, session_id)
    return Response(status_code=status.HTTP_204_NO_CONTENT)


@router.get("/me", responses=refusals(401))
def get_me(ctx: Ctx, caller: User) -> Me:
    """Return what the key or the session of this request may do."""
    return me.read_me(ctx, caller)


@router.post("/me/password", status_code=status.HTTP_204_NO_CONTENT, responses=refusals(401, 403, 429))
async def change_password(request: Request, ctx: Ctx, caller: User, body: Json[ChangePassword]) -> Response:
    """Set another password. The person's other sessions end."""
    user_id = require_person(caller)
    visitor = visitor_of(request)
    await with_password(request, partial(sign_in.change_password, ctx, user_id, caller.key_id, body, visitor))
    return Response(status_code=status.HTTP_204_NO_CONTENT)


@router.get("/me/notifications", responses=USER_ITEM)
def get_notifications(ctx: Ctx, caller: User) -> Notifications:
    """Return the mails that the caller gets about their own jobs in the project."""
    return own_notifications.read_notifications(ctx, caller)


@router.put("/me/notifications", responses=refusals(400, 401, 403, 404, 503))
def set_notifications(ctx: Ctx, caller: User, body: Json[SetNotifications]) -> Notifications:
    """Set the mails that the caller gets about their own jobs in the project."""
    return own_notifications.set_notifications(ctx, caller, body)


def _replied(request: Request, response: Response, opened: OpenedSession) -> SignedIn:
    set_cookie(request, response, opened)
    return opened.reply
