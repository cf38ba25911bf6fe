"""Wake waiting requests when something changes."""

import asyncio
import threading
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import ParamSpec, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter

P = ParamSpec("P")
T = TypeVar("T")


class Wakeup:
    """Wakes requests that wait; `notify` may be called from any thread, `listen` in any event loop.

    Those who wait look at the store with at most `threads` threads, through `look`. Of those who listen in one
    group, and so wait for the same, one is woken at a time: when a thousand nodes wait and one job comes, two look.
    """

    def __init__(self, *, threads: int) -> None:
        self._lock = threading.Lock()
        self._limiter = CapacityLimiter(threads)
        self._waiting: dict[Hashable, dict[Listener, None]] = {}  # in the order in which they came
        self._notices = 0
        self._closed = False

    @property
    def closed(self) -> bool:
        """True when the server is closing: nobody should wait any longer."""
        return self._closed

    @property
    def waiting(self) -> int:
        """The number of requests that wait now."""
        with self._lock:
            return sum(map(len, self._waiting.values()))

    async def look(self, verb: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a synchronous verb in a thread."""
        return await anyio.to_thread.run_sync(partial(verb, *args, **kwargs), limiter=self._limiter)

    def notify(self) -> None:
        """Tell that something changed: wake one of each group that waits now, and all that are in none."""
        with self._lock:
            self._notices += 1
            for group in self._waiting:
                self._wake_next(group)

    def close(self) -> None:
        """Wake all that wait now or later, because the server is closing."""
        self._closed = True
        with self._lock:
            for listeners in self._waiting.values():
                for listener in listeners:
                    listener.wake(self._notices)

    def listen(self, group: Hashable = None) -> "Listener":
        """Return a listener that hears every notice from now on, also those between two waits; in a group, when its
        turn comes.
        """
        return Listener(self, group)

    def _wake_next(self, group: Hashable, *, again: bool = True) -> None:
        """Wake the first of the group that has not heard of the latest notice; of those under way, only `again`."""
        listeners = self._waiting.get(group, {})
        if group is None:
            chosen = list(listeners)
        else:
            resting = self._first_resting(listeners)
            # All are looking already, and may have looked too early: one of them will look once more.
            chosen = [resting] if resting is not None else list(listeners)[:1] if again else []
        for listener in chosen:
            listener.wake(self._notices)

    def _first_resting(self, listeners: Iterable["Listener"]) -> "Listener | None":
        for each in listeners:  # a plain loop: each claim that ends passes over all that look
            if each.heard < self._notices and not each.woken:
                return each
        return None


class Listener:
    """One waiting request. Use as a context manager, inside an event loop.

    In a group, one that was woken says what came of it: `nothing` when there is nothing for any of the group,
    `not_mine` when there may be something for others. One that leaves without a word, for having found something or
    for any other reason, has the next one look.
    """

    def __init__(self, wakeup: Wakeup, group: Hashable) -> None:
        self._wakeup, self._group, self._event = wakeup, group, asyncio.Event()
        self.heard = 0
        self.woken = True  # it looks once before it waits
        self._again = False  # woken while it was looking already, perhaps too early

    def __enter__(self) -> "Listener":
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        with self._wakeup._lock:
            self.heard = self._wakeup._notices
            self._wakeup._waiting.setdefault(self._group, {})[self] = None
        return self

    def __exit__(self, *_: object) -> None:
        with self._wakeup._lock:
            listeners = self._wakeup._waiting[self._group]
            del listeners[self]
            if not listeners:
                del self._wakeup._waiting[self._group]
            elif self.woken and self._group is not None:
                self._wakeup._notices += 1  # where there was one job there may be two
                self._wakeup._wake_next(self._group)

    @property
    def waiting_requests(self) -> int:
        """The number that wait in this group, this one included."""
        with self._wakeup._lock:
            return len(self._wakeup._waiting.get(self._group, ()))

    def wake(self, notice: int) -> None:
        """Wake this listener. Called with the lock held, from any thread."""
        set_already = self.woken and self._again
        self.heard, self.woken, self._again = notice, True, self.woken
        if set_already:  # it will look once more before it waits
            return
        if threading.get_ident() == self._thread:  # another thread interrupts the loop by a system call
            self._event.set()
        else:
            self._loop.call_soon_threadsafe(self._event.set)

    def nothing(self) -> None:
        """Say that there is nothing for any of the group."""
        with self._wakeup._lock:
            self.woken, self._again = self._again, False

    def not_mine(self) -> None:
        """Say that there may be something for others of the group: the next one looks."""
        with self._wakeup._lock:
            self.woken, self._again = self._again, False
            self._wakeup._wake_next(self._group, again=False)

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
            with self._wakeup._lock:
                self.woken, self._again = True, False
