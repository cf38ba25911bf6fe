"""Find the caller: a key or a session for users, a key for nodes, an attempt's own token for everything that an
attempt writes.

A session comes in a cookie. A key that comes with the request goes before it.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any

import anyio.to_thread
from fastapi import Depends, Path, Request
from fastapi.security import APIKeyCookie, APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer

from giornata.api.requests.lists import Lists
from giornata.api.settings import ApiSettings
from giornata.api.wakeup import Wakeup
from giornata.control.access.authenticate import authenticate, remembered, remembered_person, signed_in, verify
from giornata.control.access.install import signing_key
from giornata.control.access.signing_in.sessions import require_csrf
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.loops import LoopStatus
from giornata.control.quotas.request_limits import read_quotas
from giornata.domain.errors import Unauthenticated
from giornata.protocol.account.people import CSRF_HEADER, PROJECT_HEADER
from giornata.web.request_limits import count, counted_at_once
from giornata.web.session_cookies import COOKIE, session_secret
from giornata.web.visitors import origin_of

MAX_KEY_LENGTH = 512
# Tokens of providers, which name and sign a handful of things. SaladCloud's have 1,000 characters at most.
MAX_SECRET_LENGTH = 4096

_bearer = HTTPBearer(auto_error=False, scheme_name="key", description="`Authorization: Bearer gk_…`")
_header = APIKeyHeader(name="X-API-Key", auto_error=False, scheme_name="key_header")
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
ReadLoops = Annotated[Callable[[], Sequence[LoopStatus]], Depends(_of_app("loops_status"))]


async def _caller(
    request: Request,
    ctx: Ctx,
    bearer: Annotated[Bearer, Depends(_bearer)],
    header: Annotated[str | None, Depends(_header)],
    _: Annotated[str | None, Depends(_cookie)],
) -> Caller:
    known = await _known(request, ctx, bearer, header)
    caller = replace(known, origin=origin_of(request))
    request.state.caller = caller  # for routes that look into a body which is refused
    return caller


async def _known(request: Request, ctx: Context, bearer: Bearer, header: str | None) -> Caller:
    """Return the caller, which may be remembered from another request."""
    secret = bearer.credentials if bearer else header
    if not secret and (session := session_secret(request)) is not None:
        if request.method not in SAFE_METHODS:
            require_csrf(session, request.headers.get(CSRF_HEADER))
        project_id = request.headers.get(PROJECT_HEADER)
        person = remembered_person(ctx, session, project_id)
        caller = await anyio.to_thread.run_sync(signed_in, ctx, session, project_id) if person is None else person
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
