"""Tell where a request came from, and hash passwords of visitors in threads of their own."""

from collections.abc import Callable
from typing import TypeVar

import anyio.to_thread
from fastapi import Request

from giornata.control.access import sign_in
from giornata.control.access.sessions import Visitor

T = TypeVar("T")


async def with_password(request: Request, verb: Callable[[], T]) -> T:
    """Call a verb that hashes a password, in a thread for passwords. Raises TooMany when this client has too many
    such requests open.
    """
    with request.app.state.sign_ins.taken(sign_in.network_of(visitor_of(request).address)):
        return await anyio.to_thread.run_sync(verb, limiter=request.app.state.password_threads)


def visitor_of(request: Request) -> Visitor:
    """Return where the request came from."""
    address = "" if request.client is None else request.client.host
    return Visitor(address=address, agent=request.headers.get("user-agent", ""))
