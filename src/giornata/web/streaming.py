"""Bodies of requests that are not read as a whole before the app sees them."""

import re
from collections.abc import AsyncIterator, Iterator

import anyio.from_thread

BLOBS_PATH = "/v1/blobs/"
PASSED_UPLOAD = re.compile(r"/dashboard/projects/[^/]+/uploads/[^/]+", re.ASCII)


def is_streamed(method: str, path: str) -> bool:
    """Return True when the route reads the body itself, and bounds it: signed URLs, and uploads of pages."""
    return path.startswith(BLOBS_PATH) or (method == "PUT" and PASSED_UPLOAD.fullmatch(path) is not None)


def from_loop(chunks: AsyncIterator[bytes]) -> Iterator[bytes]:
    """Yield the event loop's chunks, for a thread that it started."""

    async def following() -> bytes | None:
        return await anext(chunks, None)

    while (chunk := anyio.from_thread.run(following)) is not None:
        yield chunk
