"""Find the caller: a key or a session for users, a key for nodes, an attempt's own token for everything that an
attempt writes.

A session comes in a cookie. A key that comes with the request goes before it.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Annotated, Any

import anyio.to_thread
from fastapi import Depends, Path, Request, Response
from fastapi.security import APIKeyCookie, APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer

from giornata.api.lists import Lists
from giornata.api.request_limits import count, counted_at_once
from giornata.api.settings import ApiSettings
from giornata.api.wakeup import Wakeup
from giornata.control.access.authenticate import authenticate, remembered, signed_in, verify
from giornata.control.access.install import signing_key
from giornata.control.access.oidc_sign_in import SIGN_IN_TTL_S
from giornata.control.access.sessions import SESSION_MS, OpenedSession, require_csrf
from giornata.control.caller import Caller, RequestOrigin
from giornata.control.context import Context
from giornata.control.quotas.request_limits import read_quotas
from giornata.domain.errors import Unauthenticated
from giornata.domain.telemetry import request_id
from giornata.protocol.people import CSRF_HEADER, PROJECT_HEADER

MAX_KEY_LENGTH = 512
# Tokens of providers, which name and sign a handful of things. SaladCloud's have 1,000 characters at most.
MAX_SECRET_LENGTH = 4096

_bearer = HTTPBearer(auto_error=False, scheme_name="key", description="`Authorization: Bearer gk_…`")
_header = APIKeyHeader(name="X-API-Key", auto_error=False, scheme_name="key_header")
# The prefix has browsers refuse a cookie that another host of the domain, or plain http, would plant.
COOKIE = "__Host-giornata-session"
LOOPBACK_COOKIE = "giornata-session"
PROVIDER_COOKIE = "__Host-giornata-provider"
LOOPBACK_PROVIDER_COOKIE = "giornata-provider"
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

_cookie = APIKeyCookie(
    name=COOKIE,
    auto_error=False,
    scheme_name="session",
    description=f"From `POST /v1/session`. Requests but GET and HEAD need `{CSRF_HEADER}` besides; "
    f"`{PROJECT_HEADER}` names the project, if the person has several.",
)
_token = HTTPBearer(auto_error=False, scheme_name="attempt_token", description="The `token` of the lease.")

Bearer = HTTPAuthorizationCredentials | None


def _of_app(name: str) -> Callable[[Request], Awaitable[Any]]:
    """Return the dependency that gives what the app keeps in its state under this name."""

    async def kept(request: Request) -> Any:
        return getattr(request.app.state, name)

    return kept


Ctx = Annotated[Context, Depends(_of_app("context"))]
Settings = Annotated[ApiSettings, Depends(_of_app("settings"))]
ReadLists = Annotated[Lists, Depends(_of_app("lists"))]
Wake = Annotated[Wakeup, Depends(_of_app("wakeup"))]


def origin_of(request: Request) -> RequestOrigin:
    """Return the place that the request came from: the client's address, behind trusted proxies, and its id."""
    return RequestOrigin(address="" if request.client is None else request.client.host, request_id=request_id.get())


async def _caller(
    request: Request,
    ctx: Ctx,
    bearer: Annotated[Bearer, Depends(_bearer)],
    header: Annotated[str | None, Depends(_header)],
    _: Annotated[str | None, Depends(_cookie)],
) -> Caller:
    known = await _known(request, ctx, bearer, header)
    return replace(known, origin=origin_of(request))


async def _known(request: Request, ctx: Context, bearer: Bearer, header: str | None) -> Caller:
    """Return the caller, which may be remembered from another request."""
    secret = bearer.credentials if bearer else header
    if not secret and (session := session_secret(request)) is not None:
        if request.method not in SAFE_METHODS:
            require_csrf(session, request.headers.get(CSRF_HEADER))
        caller = await anyio.to_thread.run_sync(signed_in, ctx, session, request.headers.get(PROJECT_HEADER))
        return await _counted(request, ctx, caller)
    if not secret:
        raise Unauthenticated("no key was sent; send Authorization: Bearer gk_… or X-API-Key: gk_…")
    if len(secret) > MAX_SECRET_LENGTH:
        raise Unauthenticated("this is not a key of this installation")
    # Mostly remembered: a thread is only taken when the database has to be asked.
    known = remembered(ctx, secret)
    caller = await anyio.to_thread.run_sync(authenticate, ctx, secret) if known is None else known
    return await _counted(request, ctx, caller)


async def _counted(request: Request, ctx: Context, caller: Caller) -> Caller:
    """Count the request against the limits of its project and its caller. Raises RateLimited."""
    if not counted_at_once(request.scope, ctx, caller):
        quotas = await anyio.to_thread.run_sync(read_quotas, ctx, caller)
        count(request.scope, ctx, caller, quotas)
    return caller


def session_secret(request: Request) -> str | None:
    """Return the secret of the session's cookie, if there is one."""
    return request.cookies.get(_cookie_name(request)) or None


def set_cookie(request: Request, response: Response, opened: OpenedSession) -> None:
    """Hand the session to the browser: to no script, and with no request that another site makes."""
    name = _cookie_name(request)
    response.set_cookie(
        name, opened.secret, max_age=SESSION_MS // 1000, secure=name == COOKIE, httponly=True, samesite="lax"
    )


def clear_cookie(request: Request, response: Response) -> None:
    """Have the browser forget the session."""
    name = _cookie_name(request)
    response.delete_cookie(name, secure=name == COOKIE, httponly=True, samesite="lax")


def provider_cookie(request: Request) -> str | None:
    """Return what belongs to a sign-in that is on its way to the OpenID provider, if there is one."""
    return request.cookies.get(LOOPBACK_PROVIDER_COOKIE if _is_plain(request) else PROVIDER_COOKIE) or None


def set_provider_cookie(request: Request, response: Response, sealed: str) -> None:
    """Hand the browser what belongs to a sign-in at the provider; an empty text has the browser forget it."""
    plain = _is_plain(request)
    response.set_cookie(
        LOOPBACK_PROVIDER_COOKIE if plain else PROVIDER_COOKIE,
        sealed,
        max_age=SIGN_IN_TTL_S if sealed else 0,
        secure=not plain,
        httponly=True,
        samesite="lax",  # the provider's page leads back here
    )


def _cookie_name(request: Request) -> str:
    return LOOPBACK_COOKIE if _is_plain(request) else COOKIE


def _is_plain(request: Request) -> bool:
    """Return True on this machine itself by plain http, where alone cookies do without `Secure`."""
    return request.url.scheme == "http" and request.url.hostname in LOOPBACK


def known_caller(ctx: Context, secret: str) -> Caller | None:
    """Return the owner of this key, where that needs neither a thread nor the database."""
    return remembered(ctx, secret) if secret and len(secret) <= MAX_SECRET_LENGTH else None


def known_attempt(ctx: Context, attempt_id: str, token: str) -> bool:
    """Return True when this is the attempt's own token, where that can be told at once."""
    if ctx.memory.signing_key is None or not attempt_id or max(len(attempt_id), len(token)) > MAX_KEY_LENGTH:
        return False
    try:
        verify(ctx, attempt_id, token)
    except Unauthenticated:
        return False
    return True


async def _attempt(
    ctx: Ctx,
    bearer: Annotated[Bearer, Depends(_token)],
    attempt_id: Annotated[str, Path(max_length=64, description="The lease's `attempt_id`.")],
) -> str:
    token = bearer.credentials if bearer else ""
    if not token or len(token) > MAX_KEY_LENGTH:
        raise Unauthenticated("send the lease's token: Authorization: Bearer att_…")
    if ctx.memory.signing_key is None:
        await anyio.to_thread.run_sync(signing_key, ctx)
    verify(ctx, attempt_id, token)
    return attempt_id


User = Annotated[Caller, Depends(_caller)]
Attempt = Annotated[str, Depends(_attempt)]
