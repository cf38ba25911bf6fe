"""Bodies of requests that are not read as a whole before the app sees them."""

import contextlib
import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TypeVar

import anyio.from_thread
import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import Request
from starlette.requests import ClientDisconnect

from giornata.domain.errors import GiornataError, TooSlow, Unavailable

Taken = TypeVar("Taken")
DRAINED_BYTES = 32 * 2**20
"""Bytes that are read of a refused body. The connection of a client that sends more is closed."""

BLOBS_PATH = "/v1/blobs/"
PASSED_UPLOAD = re.compile(r"/dashboard/projects/[^/]+/uploads/[^/]+", re.ASCII)


def is_streamed(method: str, path: str) -> bool:
    """Return True when the route reads the body itself, and bounds it: signed URLs, and uploads of pages."""
    return path.startswith(BLOBS_PATH) or (method == "PUT" and PASSED_UPLOAD.fullmatch(path) is not None)


async def received(request: Request, take: Callable[[Iterator[bytes]], Taken], limiter: CapacityLimiter) -> Taken:
    """Return what `take` makes of the request's body, in a thread of `limiter`.

    Raises:
        Unavailable: the client went away before it had sent everything.
        GiornataError: what `take` raises. The rest of the body is read first, up to DRAINED_BYTES: a client that is
            cut off while it sends may never get to read why.
    """
    body = aiter(request.stream())
    try:
        return await anyio.to_thread.run_sync(take, _from_loop(body), limiter=limiter)
    except ClientDisconnect:
        raise Unavailable("the client went away before it had sent everything") from None
    except TooSlow:
        raise
    except GiornataError:
        await _drained(body)
        raise


async def _drained(body: AsyncIterator[bytes]) -> None:
    drained_bytes = 0
    with contextlib.suppress(ClientDisconnect, TooSlow):
        async for chunk in body:
            drained_bytes += len(chunk)
            if drained_bytes >= DRAINED_BYTES:
                return


def _from_loop(chunks: AsyncIterator[bytes]) -> Iterator[bytes]:
    """Yield the event loop's chunks, for a thread that it started."""

    async def following() -> bytes | None:
        return await anext(chunks, None)

    while (chunk := anyio.from_thread.run(following)) is not None:
        yield chunk
