"""Pages are read and written as JSON in threads of their own, a few at a time.

FastAPI would turn a page into JSON on the event loop, where heartbeats and `/healthz` wait for it. However many lists
are asked for at once, no more than `threads` pages are in memory, and no other request waits for a thread.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import Response
from pydantic import BaseModel

MEDIA_TYPE = "application/json"


class Lists:
    """Runs the verbs that read lists. For one event loop."""

    def __init__(self, *, threads: int) -> None:
        self._limiter = CapacityLimiter(threads)

    async def page(self, verb: Callable[..., BaseModel], *args: Any, **kwargs: Any) -> Response:
        """The reply that carries what `verb` returns. Raises what `verb` raises."""
        content = await anyio.to_thread.run_sync(partial(_rendered, verb, *args, **kwargs), limiter=self._limiter)
        return Response(content, media_type=MEDIA_TYPE)


def _rendered(verb: Callable[..., BaseModel], *args: Any, **kwargs: Any) -> bytes:
    return verb(*args, **kwargs).model_dump_json(by_alias=True).encode()
