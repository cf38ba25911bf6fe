"""The route that begins a sign-in at the OpenID provider. The page that the provider leads back to is a page's."""

from functools import partial

import anyio.to_thread
from fastapi import APIRouter, Request, Response, status

from giornata.api.addresses import CALLBACK_PATH, page_url
from giornata.api.callers import Ctx, Settings
from giornata.api.openapi import refusals
from giornata.control.access.authenticate import signed_in
from giornata.control.access.oidc_sign_in import begin_oidc
from giornata.control.access.sessions import require_csrf
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.protocol.people import CSRF_HEADER
from giornata.protocol.sign_in import BeginSignIn, BegunSignIn
from giornata.protocol.strict_json import Json
from giornata.web.session_cookies import session_secret, set_provider_cookie
from giornata.web.visitors import with_provider

router = APIRouter(prefix="/v1", tags=["people"])


@router.post("/oidc/authorizations", status_code=status.HTTP_201_CREATED, responses=refusals(401, 403, 404, 429))
async def begin_sign_in(
    request: Request, response: Response, ctx: Ctx, settings: Settings, body: Json[BeginSignIn]
) -> BegunSignIn:
    """Begin to sign in at the OpenID provider. The browser goes to the page of the reply.

    With `link` the provider's account is added to the person of the session, which is sent as a cookie.
    """
    caller = await _linked_caller(request, ctx) if body.link else None
    redirect_uri = page_url(request, settings, CALLBACK_PATH)
    pending = await with_provider(request, partial(begin_oidc, ctx, body, redirect_uri=redirect_uri, caller=caller))
    set_provider_cookie(request, response, pending.cookie)
    return BegunSignIn(authorization_url=pending.authorization_url)


async def _linked_caller(request: Request, ctx: Context) -> Caller | None:
    """Return the person of the session. Raises Unauthenticated, Forbidden without the session's CSRF token."""
    secret = session_secret(request)
    if secret is None:
        return None
    require_csrf(secret, request.headers.get(CSRF_HEADER))
    return await anyio.to_thread.run_sync(signed_in, ctx, secret, None)
