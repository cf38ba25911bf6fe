"""Tell where a request came from, and hash passwords of visitors in threads of their own."""

from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.to_thread
from fastapi import Request

from giornata.control.access.signing_in import sign_in
from giornata.control.access.signing_in.sessions import Visitor
from giornata.control.caller import RequestOrigin
from giornata.domain.telemetry import request_id

T = TypeVar("T")


async def with_password(request: Request, verb: Callable[[], T]) -> T:
    """Call a verb that hashes a password, in a thread for passwords. Raises TooMany when this client has too many
    such requests open.
    """
    return await _with(request, verb, request.app.state.password_threads)


async def with_provider(request: Request, verb: Callable[[], T]) -> T:
    """Call a verb that asks the OpenID provider, in a thread for it. Raises TooMany as `with_password`."""
    return await _with(request, verb, request.app.state.provider_threads)


async def _with(request: Request, verb: Callable[[], T], threads: anyio.CapacityLimiter) -> T:
    with request.app.state.sign_ins.taken(sign_in.network_of(visitor_of(request).address)):
        return await anyio.to_thread.run_sync(verb, limiter=threads)


def origin_of(request: Request) -> RequestOrigin:
    """Return the place that the request came from: the client's address, behind trusted proxies, and its id."""
    return RequestOrigin(address="" if request.client is None else request.client.host, request_id=request_id.get())


def visitor_of(request: Request) -> Visitor:
    """Return the browser that the request came from, and its place."""
    origin = origin_of(request)
    agent = request.headers.get("user-agent", "")
    return Visitor(address=origin.address, agent=agent, request_id=origin.request_id)
