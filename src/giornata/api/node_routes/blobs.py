"""Routes of signed URLs, for storage that has no server of its own. The signature is all the permission there is."""

from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

from anyio import CapacityLimiter
from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse
from starlette.types import Receive, Scope, Send

from giornata.api.replies.openapi import refusals
from giornata.api.requests.open_connections import ProjectConnections
from giornata.control.ports.blobs import BlobRequest, ServesBlobs
from giornata.domain.generation.picture import project_of_key
from giornata.web.streaming import received

_REFUSALS = refusals(403, 409, 429)
_BYTES = {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}


def serves_blobs(storage: object) -> TypeGuard[ServesBlobs]:
    """Return True when this storage has no server of its own, and leaves its signed URLs to us."""
    return all(hasattr(storage, verb) for verb in ("accept_put", "accept_part", "open_get"))


def blob_routes(storage: ServesBlobs, *, threads: int, places: ProjectConnections) -> APIRouter:
    """Return the routes `/v1/blobs/{key}` over `storage`.

    Bytes on their way hold a place of their project, once the signature is good. At most `threads` bodies are
    received at a time, in threads of their own: slow uplinks must not keep heartbeats waiting.
    """
    router = APIRouter(prefix="/v1/blobs", tags=["blobs"])
    limiter = CapacityLimiter(threads)

    @router.put("/{key:path}", responses=_REFUSALS | {200: {"description": "Stored; the ETag header names it."}})
    async def put_blob(request: Request, key: str) -> Response:
        """Store the body at the signed URL."""
        asked = _asked(request, key)
        accept = storage.accept_part if "part" in asked.query else storage.accept_put

        def take(body: Iterator[bytes]) -> str:
            with closing(_counted(body, places.taken(project_of_key(key)))) as chunks:
                return accept(asked, chunks)

        etag = await received(request, take, limiter)
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
        slot = places.taken(project_of_key(key))
        return _CountedFile(opened.path, media_type=opened.media_type, headers=opened.headers, slot=slot)

    @router.head("/{key:path}", include_in_schema=False)
    def head_blob(request: Request, key: str) -> FileResponse:
        """Answer as GET does, without the bytes. The URL is one that was signed for GET."""
        opened = storage.open_get(replace(_asked(request, key), method="GET"))
        return FileResponse(opened.path, media_type=opened.media_type, headers=opened.headers)

    return router


def _counted(body: Iterator[bytes], slot: AbstractContextManager[None]) -> Generator[bytes]:
    """Yield the body's chunks with a place held. Storage asks for the first one when it has checked the signature."""
    with slot:
        yield from body


class _CountedFile(FileResponse):
    """A file that holds a place while it is sent."""

    def __init__(self, path: Path, *, slot: AbstractContextManager[None], **how: Any) -> None:
        super().__init__(path, **how)
        self._slot = slot

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._slot:
            await super().__call__(scope, receive, send)


def _asked(request: Request, key: str) -> BlobRequest:
    declared = request.headers.get("content-length", "")
    return BlobRequest(
        method=request.method,
        key=key,
        query=dict(request.query_params),
        content_length=int(declared) if declared.isdigit() else None,
    )
