"""Uploads that pass through the server, where the policy of the pages refuses the storage's address (ADR 98)."""

import contextlib
from collections.abc import AsyncIterator
from functools import partial
from http import HTTPStatus

import anyio.to_thread
from fastapi import Request, Response
from starlette.requests import ClientDisconnect
from starlette.routing import Route

from giornata.control.storage.pass_upload import pass_upload
from giornata.dashboard.visit import ROOT, visitor
from giornata.domain.errors import GiornataError, TooSlow, Unavailable
from giornata.web.streaming import from_loop

PATH = "/projects/{project_id}/uploads/{upload_id}"
MOST_AT_ONCE = 4
"""Bodies that are received at a time, each below 16 MiB. Others wait without a thread."""
DRAINED_BYTES = 32 * 2**20


async def put_upload(request: Request) -> Response:
    """Pass the body on to the storage. The person is known, and the CSRF token checked, before a byte is read."""
    request.scope["route"] = _NAMED
    visit = await anyio.to_thread.run_sync(partial(visitor, request), limiter=request.app.state.page_threads)
    body = aiter(request.stream())
    passing = partial(pass_upload, visit.ctx, visit.caller, visit.path("upload_id"), from_loop(body))
    try:
        await anyio.to_thread.run_sync(passing, limiter=request.app.state.upload_threads)
    except ClientDisconnect:
        raise Unavailable("the client went away before it had sent everything") from None
    except TooSlow:
        raise
    except GiornataError:
        await _drained(body)
        raise
    return Response(status_code=HTTPStatus.NO_CONTENT)


async def _drained(body: AsyncIterator[bytes]) -> None:
    # A browser that is cut off while it sends may never get to read why.
    drained_bytes = 0
    with contextlib.suppress(ClientDisconnect, TooSlow):
        async for chunk in body:
            drained_bytes += len(chunk)
            if drained_bytes >= DRAINED_BYTES:
                return


_NAMED = Route(f"{ROOT}{PATH}", put_upload, methods=["PUT"])
ROUTES = (Route(PATH, put_upload, methods=["PUT"]),)
