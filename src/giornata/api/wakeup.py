"""Wakes whoever waits in this process: claims when a job enters the queue, streams when the server closes."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter

P = ParamSpec("P")
T = TypeVar("T")


class Wakeup:
    """`notify` may be called from any thread, `listen` in any event loop.

    Those who wait look at the store with at most `threads` threads, through `look`.
    """

    def __init__(self, *, threads: int) -> None:
        self._lock = threading.Lock()
        self._limiter = CapacityLimiter(threads)
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether the server is closing: nobody should wait any longer."""
        return self._closed

    @property
    def waiting(self) -> int:
        """How many requests wait now."""
        with self._lock:
            return len(self._waiting)

    async def look(self, verb: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a synchronous verb in a thread."""
        return await anyio.to_thread.run_sync(partial(verb, *args, **kwargs), limiter=self._limiter)

    def notify(self) -> None:
        """Something changed: wake all that wait now."""
        with self._lock:
            for loop, event in self._waiting:
                loop.call_soon_threadsafe(event.set)

    def close(self) -> None:
        """The server is closing: wake all that wait now or later."""
        self._closed = True
        self.notify()

    def listen(self) -> "Listener":
        """Hears every notice from now on, also those between two waits."""
        return Listener(self)


class Listener:
    """One waiting request. Use as a context manager, inside an event loop."""

    def __init__(self, wakeup: Wakeup) -> None:
        self._wakeup, self._event = wakeup, asyncio.Event()

    def __enter__(self) -> "Listener":
        self._entry = (asyncio.get_running_loop(), self._event)
        with self._wakeup._lock:
            self._wakeup._waiting.add(self._entry)
        return self

    def __exit__(self, *_: object) -> None:
        with self._wakeup._lock:
            self._wakeup._waiting.discard(self._entry)

    async def wait(self, timeout_s: float) -> None:
        """Return at the first notice since the last wait, or after `timeout_s`, whichever comes first."""
        if self._wakeup.closed:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return
        finally:
            self._event.clear()
