"""Routes that begin a sign-in at the OpenID provider, and list and unlink accounts there.

The page that the provider leads back to is a page's.
"""

from functools import partial
from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Path, Request, Response, status

from giornata.api.replies.openapi import USER, refusals
from giornata.api.requests.callers import Ctx, User
from giornata.control.access.authenticate import signed_in
from giornata.control.access.signing_in import linked_identities
from giornata.control.access.signing_in.oidc_sign_in import begin_oidc
from giornata.control.access.signing_in.sessions import require_csrf
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.protocol.account.people import CSRF_HEADER
from giornata.protocol.account.sign_in import BeginSignIn, BegunSignIn, LinkedIdentities
from giornata.protocol.strict_json import Json
from giornata.web.addresses import CALLBACK_PATH, page_url
from giornata.web.session_cookies import session_secret, set_provider_cookie
from giornata.web.visitors import with_provider

router = APIRouter(prefix="/v1", tags=["people"])


@router.post("/oidc/authorizations", status_code=status.HTTP_201_CREATED, responses=refusals(401, 403, 404, 429))
async def begin_sign_in(request: Request, response: Response, ctx: Ctx, body: Json[BeginSignIn]) -> BegunSignIn:
    """Begin to sign in at the OpenID provider. The browser goes to the page of the reply.

    With `link` the sign-in links the provider's account to the person of the session (sent as a cookie).
    """
    caller = await _linked_caller(request, ctx) if body.link else None
    redirect_uri = page_url(request, CALLBACK_PATH)
    pending = await with_provider(request, partial(begin_oidc, ctx, body, redirect_uri=redirect_uri, caller=caller))
    set_provider_cookie(request, response, pending.cookie)
    return BegunSignIn(authorization_url=pending.authorization_url)


@router.get("/me/identities", responses=USER)
def get_identities(ctx: Ctx, caller: User) -> LinkedIdentities:
    """Return the accounts at OpenID providers that are linked to the caller's person."""
    return linked_identities.list_identities(ctx, caller)


@router.delete(
    "/me/identities/{identity_id}", status_code=status.HTTP_204_NO_CONTENT, responses=refusals(401, 403, 404, 409)
)
def delete_identity(ctx: Ctx, caller: User, identity_id: Annotated[str, Path(max_length=64)]) -> Response:
    """Unlink an account at an OpenID provider. The last way to sign in is refused."""
    linked_identities.unlink_identity(ctx, caller, identity_id)
    return Response(status_code=status.HTTP_204_NO_CONTENT)


async def _linked_caller(request: Request, ctx: Context) -> Caller | None:
    """Return the person of the session. Raises Unauthenticated, Forbidden without the session's CSRF token."""
    secret = session_secret(request)
    if secret is None:
        return None
    require_csrf(secret, request.headers.get(CSRF_HEADER))
    return await anyio.to_thread.run_sync(signed_in, ctx, secret, None)
