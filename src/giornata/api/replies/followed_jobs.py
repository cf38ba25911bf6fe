"""One look at the store for all event streams of a server.

A stream waits until rows lie behind the positions up to which it has read. One task compares the positions of all
streams with the heads of what they follow, and wakes those that are behind. A position that a stream reaches during a
look is compared by the next one, so that no row is missed.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from giornata.api.wakeup import Wakeup
from giornata.control.access.authenticate import require_standing
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.jobs.reading.history_heads import Heads, HistoryPart, read_heads
from giornata.domain.errors import Unauthenticated

log = logging.getLogger(__name__)

LOOKS_PER_POLL = 4
"""The most looks in `poll_s`, however often something changes."""
Positions = Sequence[tuple[HistoryPart, int]]


class Follower:
    """A stream of one job, inside an event loop.

    `positions` returns the last id that the stream has read of each part; another thread calls it.
    """

    def __init__(self, *, job_id: str, caller: Caller, positions: Callable[[], Positions]) -> None:
        self._job_id, self.caller, self._positions = job_id, caller, positions
        self._event = asyncio.Event()

    @property
    def followed(self) -> Iterable[tuple[HistoryPart, str]]:
        """The histories whose heads the stream waits for."""
        return [(part, self._job_id) for part, _ in self._positions()]

    def has_to_look(self, heads: Heads) -> bool:
        """Return True when the stream is behind one of the heads, and when its job is gone."""
        gone = (HistoryPart.EVENTS, self._job_id) not in heads
        return gone or any(heads.get((part, self._job_id), 0) > read for part, read in self._positions())

    def wake(self) -> None:
        """Let the stream look for itself. Called in the event loop of the stream."""
        self._event.set()

    async def wait(self, timeout_s: float) -> bool:
        """Return True when the stream has to look, False after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True


class FollowedJobs:
    """The streams of one server. Looks at the store every `poll_s`, and after a notice of `wakeup`."""

    def __init__(self, ctx: Context, wakeup: Wakeup, *, poll_s: float) -> None:
        self._ctx, self._wakeup, self._poll_s = ctx, wakeup, poll_s
        self._followers: set[Follower] = set()
        self._watch: asyncio.Task[None] | None = None

    @contextmanager
    def follow(self, follower: Follower) -> Iterator[None]:
        """Wake the follower when it has to look, until the end of the block. All followers have one event loop."""
        self._followers.add(follower)
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._watch_store())
        try:
            yield
        finally:
            self._followers.discard(follower)

    async def _watch_store(self) -> None:
        """Look while somebody follows. A look comes at the earliest `poll_s / LOOKS_PER_POLL` after the last one."""
        with self._wakeup.listen() as listener:
            while self._followers and not self._wakeup.closed:
                await listener.wait(self._poll_s)
                await self._wake_those_behind()
                await asyncio.sleep(self._poll_s / LOOKS_PER_POLL)
        for follower in self._followers:
            follower.wake()

    async def _wake_those_behind(self) -> None:
        followers = tuple(self._followers)
        try:
            chosen = await self._wakeup.look(self._behind, followers)
        except Exception:
            # The supervisor of this task: each stream looks for itself, and meets the error as its own.
            log.exception("the look for %d event streams failed", len(followers))
            chosen = followers
        for follower in chosen:
            follower.wake()

    def _behind(self, followers: Sequence[Follower]) -> Sequence[Follower]:
        """Return those that have to look. For a thread: it asks the store."""
        ended = {caller for caller in {each.caller for each in followers} if not self._may_stay(caller)}
        heads = read_heads(self._ctx, {one for each in followers for one in each.followed})
        return [each for each in followers if each.has_to_look(heads) or each.caller in ended]

    def _may_stay(self, caller: Caller) -> bool:
        """Return False when the caller's key or session is good no more."""
        try:
            require_standing(self._ctx, caller)
        except Unauthenticated:
            return False
        return True
