"""A body has to arrive: whoever sends it a byte a minute would keep a connection, or a thread, for ever."""

import asyncio
import time
from dataclasses import dataclass

from starlette.types import Message, Receive

from giornata.domain.errors import TooSlow


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long we wait for a body: `grace_s`, and one second more for each `bytes_per_s` that have come.

    Only time spent waiting for the client counts, not time in which nobody here was ready to read.
    """

    grace_s: float
    bytes_per_s: int

    def kept(self, receive: Receive) -> Receive:
        """`receive`, until the body is whole, with an end. It raises TooSlow, and so does every call after that."""
        waited_s, came_bytes, whole = 0.0, 0, False

        async def in_time() -> Message:
            nonlocal waited_s, came_bytes, whole
            if whole:
                return await receive()
            began_s = time.monotonic()
            try:
                async with asyncio.timeout(self.grace_s + came_bytes / self.bytes_per_s - waited_s):
                    message = await receive()
            except TimeoutError:
                raise TooSlow(f"{came_bytes} bytes of the body came in time, and then no more") from None
            finally:
                waited_s += time.monotonic() - began_s
            came_bytes += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            return message

        return in_time
