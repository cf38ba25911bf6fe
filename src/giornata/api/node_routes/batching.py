"""Answer requests that arrive while the database is at work together, in one transaction."""

import asyncio
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter

from giornata.domain.errors import Unavailable

Q = TypeVar("Q")
A = TypeVar("A")

# So that the first of them does not wait long for the last, nor hold its rows.
MOST_AT_ONCE = 64
# Of the time that the last answers took, to wait for those who got them and ask again: with them the next transaction
# has twice as many, and a transaction costs its write to the disk however many are in it.
LINGER = 0.2
TRIED_AGAIN_AFTER = 16  # transactions, where it was in vain: whoever got a job works on it


class RequestBatcher(Generic[Q, A]):
    """Calls a synchronous verb with a list of questions in a thread; it gives back as many answers, in their order.

    A question that comes while nothing is under way is asked at once, alone. Those that wait are asked a moment after
    the answers to others were given, so that these can join them. An answer that is an exception is raised. No list
    has two questions of one `key`. For one event loop.
    """

    def __init__(
        self, verb: Callable[[Sequence[Q]], Sequence[A | Exception]], *, key: Callable[[Q], Hashable]
    ) -> None:
        self._verb, self._key = verb, key
        self._waiting: list[tuple[Q, asyncio.Future[A]]] = []
        self._limiter = CapacityLimiter(1)
        self._work: asyncio.Task[None] | None = None
        self._enough, self._all_here = MOST_AT_ONCE, asyncio.Event()
        self._in_a_hurry = 0  # so many transactions more begin at once

    async def ask(self, question: Q) -> A:
        """Return the answer to the question. One whose asker has left is given nevertheless, to nobody."""
        future: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, future))
        if len(self._waiting) >= self._enough:
            self._all_here.set()
        if self._work is None:
            self._work = asyncio.create_task(self._answer_all())
        return await future

    async def _answer_all(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                asked, began_s = self._next(), loop.time()
                answers = await self._answers([question for question, _ in asked])
                for (_, future), answer in zip(asked, answers, strict=True):
                    if future.done():
                        continue
                    if isinstance(answer, Exception):
                        future.set_exception(answer)
                    else:
                        future.set_result(answer)
                if self._waiting:
                    await self._linger((loop.time() - began_s) * LINGER, answered=len(asked))
        finally:
            self._work = None

    async def _linger(self, most_s: float, *, answered: int) -> None:
        """Wait until those who were just answered have asked again, too; not for a while where few of them did."""
        there = len(self._waiting)
        self._enough = min(MOST_AT_ONCE, there + answered)
        if there >= self._enough or self._in_a_hurry:
            self._in_a_hurry = max(0, self._in_a_hurry - 1)
            return
        self._all_here.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                await self._all_here.wait()
        if len(self._waiting) - there < answered / 2:
            self._in_a_hurry = TRIED_AGAIN_AFTER

    def _next(self) -> list[tuple[Q, "asyncio.Future[A]"]]:
        """Take the first questions that are of different keys."""
        chosen: dict[Hashable, tuple[Q, asyncio.Future[A]]] = {}
        left = []
        for each in self._waiting:
            key = self._key(each[0])
            if key in chosen or len(chosen) == MOST_AT_ONCE:
                left.append(each)
            else:
                chosen[key] = each
        self._waiting = left
        return list(chosen.values())

    async def _answers(self, questions: Sequence[Q]) -> Sequence[A | Exception]:
        try:
            return await anyio.to_thread.run_sync(self._verb, questions, limiter=self._limiter)
        except Exception as error:  # noqa: BLE001 - told to those who asked
            if len(questions) == 1 or isinstance(error, Unavailable):
                return [error] * len(questions)
        # One of them is to blame: the others must not pay for it.
        return [answer for question in questions for answer in await self._answers([question])]
