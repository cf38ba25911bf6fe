"""Serve lists: the query parameters that they share, and threads that turn their pages into JSON.

FastAPI would turn a page into JSON on the event loop, where heartbeats and `/healthz` wait for it. However many lists
are asked for at once, no more than `threads` pages are in memory, and no other request waits for a thread.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import Path, Query, Response
from pydantic import BaseModel

MEDIA_TYPE = "application/json"
MAX_PAGE = 500
LARGEST_ID = 2**63 - 1
Cursor = Annotated[str | None, Query(max_length=1024, description="`next` of the page before.")]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="Maximum number of entries in the reply.")]
After = Annotated[int, Query(ge=0, le=LARGEST_ID, description="Only entries with ids above this one.")]
AfterStep = Annotated[int, Query(ge=-1, le=LARGEST_ID, description="Only later steps than this.")]
FewOrAll = Annotated[
    int | None, Query(ge=1, le=MAX_PAGE, description="Maximum number of entries in the reply. Default: all of them.")
]
BelowStep = Annotated[int | None, Query(ge=0, le=LARGEST_ID, description="Only earlier steps than this.")]
AfterName = Annotated[str, Query(max_length=255, description="Only what comes after this name.")]
JobId = Annotated[str, Path(max_length=64)]
UploadId = Annotated[str, Path(max_length=64)]


class Lists:
    """Runs the verbs that read lists. For one event loop."""

    def __init__(self, *, threads: int) -> None:
        self._limiter = CapacityLimiter(threads)

    async def page(self, verb: Callable[..., BaseModel], *args: Any, **kwargs: Any) -> Response:
        """Return the reply that carries what `verb` returns. Raises what `verb` raises."""
        content = await anyio.to_thread.run_sync(partial(_rendered, verb, *args, **kwargs), limiter=self._limiter)
        return Response(content, media_type=MEDIA_TYPE)


def _rendered(verb: Callable[..., BaseModel], *args: Any, **kwargs: Any) -> bytes:
    return verb(*args, **kwargs).model_dump_json(by_alias=True).encode()
