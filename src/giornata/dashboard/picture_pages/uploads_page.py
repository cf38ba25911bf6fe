"""Uploads that pass through the server, where the policy of the pages refuses the storage's address (ADR 98)."""

from functools import partial
from http import HTTPStatus

import anyio.to_thread
from fastapi import Request, Response
from starlette.routing import Route

from giornata.control.storage.pass_upload import pass_upload
from giornata.dashboard.visit import ROOT, visitor
from giornata.web.streaming import received

PATH = "/projects/{project_id}/uploads/{upload_id}"
MOST_AT_ONCE = 4
"""Bodies that are received at a time, each below 16 MiB. Others wait without a thread."""


async def put_upload(request: Request) -> Response:
    """Pass the body on to the storage. The person is known, and the CSRF token checked, before a byte is read."""
    request.scope["route"] = _NAMED
    visit = await anyio.to_thread.run_sync(partial(visitor, request), limiter=request.app.state.page_threads)
    take = partial(pass_upload, visit.ctx, visit.caller, visit.path("upload_id"))
    await received(request, take, request.app.state.upload_threads)
    return Response(status_code=HTTPStatus.NO_CONTENT)


_NAMED = Route(f"{ROOT}{PATH}", put_upload, methods=["PUT"])
ROUTES = (Route(PATH, put_upload, methods=["PUT"]),)
