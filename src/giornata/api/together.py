"""Requests that came in while the database was at work are done together, in one transaction."""

import asyncio
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter

from giornata.domain.errors import Unavailable

Q = TypeVar("Q")
A = TypeVar("A")

# So that the first of them does not wait long for the last, nor hold its rows.
MOST_AT_ONCE = 64


class Together(Generic[Q, A]):
    """Calls a synchronous verb with a list of questions in a thread; it gives back as many answers, in their order.

    A question that comes while nothing is under way is asked at once, alone. An answer that is an exception is
    raised. No list has two questions of one `key`. For one event loop.
    """

    def __init__(
        self, verb: Callable[[Sequence[Q]], Sequence[A | Exception]], *, key: Callable[[Q], Hashable]
    ) -> None:
        self._verb, self._key = verb, key
        self._waiting: list[tuple[Q, asyncio.Future[A]]] = []
        self._limiter = CapacityLimiter(1)
        self._work: asyncio.Task[None] | None = None

    async def ask(self, question: Q) -> A:
        """The answer. One whose asker has left is given nevertheless, to nobody."""
        future: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, future))
        if self._work is None:
            self._work = asyncio.create_task(self._answer_all())
        return await future

    async def _answer_all(self) -> None:
        try:
            while self._waiting:
                asked = self._next()
                answers = await self._answers([question for question, _ in asked])
                for (_, future), answer in zip(asked, answers, strict=True):
                    if future.done():
                        continue
                    if isinstance(answer, Exception):
                        future.set_exception(answer)
                    else:
                        future.set_result(answer)
        finally:
            self._work = None

    def _next(self) -> list[tuple[Q, "asyncio.Future[A]"]]:
        """The first ones that are of different keys."""
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
