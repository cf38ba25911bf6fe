"""One look at the store for all event streams of a server.

A stream waits until rows lie behind the positions up to which it has read. One task compares the positions of all
streams with the heads of what they follow, and wakes those that are behind. A position that a stream reaches during a
look is compared by the next one, so that no row is missed.

That a job is at another step is told, too. Since jobs go on all the time, and each page that hears of it loads parts
again, no more than STEPS_TOLD_PER_S streams are told, those first that were told longest ago.
"""

import asyncio
import logging
import time
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
STEPS_TOLD_PER_S = 2
"""Of all streams of a server together. With few streams each hears of a new step at the next look."""
Positions = Sequence[tuple[HistoryPart, int]]


class Follower:
    """A stream of one job, inside an event loop.

    `positions` returns the last id that the stream has read of each part; another thread calls it. `step` is the
    step of the job of which the client knows; None: the client is told of no step.
    """

    def __init__(
        self, *, job_id: str, caller: Caller, positions: Callable[[], Positions], step: int | None = None
    ) -> None:
        self._job_id, self.caller, self._positions, self._step = job_id, caller, positions, step
        self._event, self._has_moved = asyncio.Event(), False
        self.told_s = 0.0

    @property
    def followed(self) -> Iterable[tuple[HistoryPart, str]]:
        """The histories whose heads the stream waits for, and the step."""
        found = [(part, self._job_id) for part, _ in self._positions()]
        return found if self._step is None else [*found, (HistoryPart.STEP, self._job_id)]

    def has_to_look(self, heads: Heads) -> bool:
        """Return True when the stream is behind one of the heads, and when its job is gone."""
        gone = (HistoryPart.EVENTS, self._job_id) not in heads
        return gone or any(heads.get((part, self._job_id), 0) > read for part, read in self._positions())

    def is_elsewhere(self, heads: Heads) -> bool:
        """Return True when the job is at another step than the client knows of."""
        return self._step is not None and heads.get((HistoryPart.STEP, self._job_id), self._step) != self._step

    def tell_step(self, heads: Heads, *, now_s: float) -> None:
        """Let the stream tell that the job is at another step. Called in the event loop of the stream."""
        self._step, self.told_s, self._has_moved = heads[HistoryPart.STEP, self._job_id], now_s, True
        self._event.set()

    def take_step(self) -> bool:
        """Return True once after each `tell_step`."""
        moved, self._has_moved = self._has_moved, False
        return moved

    def wake(self) -> None:
        """Let the stream look for itself. Called in the event loop of the stream."""
        self._event.set()

    async def wait(self, timeout_s: float) -> bool:
        """Return True when the stream has to look, or to tell a step; False after `timeout_s`."""
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
        self._may_tell, self._told_s = float(STEPS_TOLD_PER_S), 0.0

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
        heads: Heads = {}
        try:
            chosen, heads = await self._wakeup.look(self._behind, followers)
        except Exception:
            # The supervisor of this task: each stream looks for itself, and meets the error as its own.
            log.exception("the look for %d event streams failed", len(followers))
            chosen = followers
        for follower in chosen:
            follower.wake()
        self.tell_steps([each for each in followers if each not in chosen], heads, now_s=time.monotonic())

    def tell_steps(self, followers: Sequence[Follower], heads: Heads, *, now_s: float) -> None:
        """Tell those of a new step whose turn it is. `now_s` are seconds of a clock that is never set back."""
        more = (now_s - self._told_s) * STEPS_TOLD_PER_S
        self._may_tell, self._told_s = min(STEPS_TOLD_PER_S, self._may_tell + more), now_s
        moved = sorted((each for each in followers if each.is_elsewhere(heads)), key=lambda each: each.told_s)
        for follower in moved[: int(self._may_tell)]:
            follower.tell_step(heads, now_s=now_s)
            self._may_tell -= 1

    def _behind(self, followers: Sequence[Follower]) -> tuple[Sequence[Follower], Heads]:
        """Return those that have to look, and the heads. For a thread: it asks the store."""
        ended = {caller for caller in {each.caller for each in followers} if not self._may_stay(caller)}
        heads = read_heads(self._ctx, {one for each in followers for one in each.followed})
        return [each for each in followers if each.has_to_look(heads) or each.caller in ended], heads

    def _may_stay(self, caller: Caller) -> bool:
        """Return False when the caller's key or session is good no more."""
        try:
            require_standing(self._ctx, caller)
        except Unauthenticated:
            return False
        return True
