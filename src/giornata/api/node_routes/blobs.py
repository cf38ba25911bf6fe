"""Routes of signed URLs, for storage that has no server of its own. The signature is all the permission there is."""

from dataclasses import replace
from functools import partial
from typing import TypeGuard

from anyio import CapacityLimiter
from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse

from giornata.api.replies.openapi import refusals
from giornata.control.ports.blobs import BlobRequest, ServesBlobs
from giornata.web.streaming import received

_REFUSALS = refusals(403, 409)
_BYTES = {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}


def serves_blobs(storage: object) -> TypeGuard[ServesBlobs]:
    """Return True when this storage has no server of its own, and leaves its signed URLs to us."""
    return all(hasattr(storage, verb) for verb in ("accept_put", "accept_part", "open_get"))


def blob_routes(storage: ServesBlobs, *, threads: int) -> APIRouter:
    """Return the routes `/v1/blobs/{key}` over `storage`.

    At most `threads` bodies are received at a time, in threads of their own: slow uplinks must not keep heartbeats
    waiting.
    """
    router = APIRouter(prefix="/v1/blobs", tags=["blobs"])
    limiter = CapacityLimiter(threads)

    @router.put("/{key:path}", responses=_REFUSALS | {200: {"description": "Stored; the ETag header names it."}})
    async def put_blob(request: Request, key: str) -> Response:
        """Store the body at the signed URL."""
        asked = _asked(request, key)
        accept = storage.accept_part if "part" in asked.query else storage.accept_put
        etag = await received(request, partial(accept, asked), limiter)
        return Response(headers={"ETag": f'"{etag}"'})

    @router.get(
        "/{key:path}",
        response_class=FileResponse,
        responses=_REFUSALS
        | {200: _BYTES | {"description": "The bytes."}, 206: _BYTES | {"description": "The range asked for."}},
    )
    def get_blob(request: Request, key: str) -> FileResponse:
        """Return the bytes at the signed URL, or a range of them."""
        opened = storage.open_get(_asked(request, key))
        return FileResponse(opened.path, media_type=opened.media_type, headers=opened.headers)

    @router.head("/{key:path}", include_in_schema=False)
    def head_blob(request: Request, key: str) -> FileResponse:
        """Answer as GET does, without the bytes. The URL is one that was signed for GET."""
        opened = storage.open_get(replace(_asked(request, key), method="GET"))
        return FileResponse(opened.path, media_type=opened.media_type, headers=opened.headers)

    return router


def _asked(request: Request, key: str) -> BlobRequest:
    declared = request.headers.get("content-length", "")
    return BlobRequest(
        method=request.method,
        key=key,
        query=dict(request.query_params),
        content_length=int(declared) if declared.isdigit() else None,
    )
