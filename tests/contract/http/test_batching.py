"""What came in meanwhile is done in one go."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from giornata.api.node_routes.batching import MOST_AT_ONCE, TRIED_AGAIN_AFTER, RequestBatcher
from giornata.domain.errors import Unavailable

LONG_S = 20.0


class Slow:
    """Doubles numbers; the first call waits until it is let go. Odd numbers above 100 break it."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.gate = threading.Event()

    def __call__(self, numbers: Sequence[int]) -> list[int | Exception]:
        self.calls.append(list(numbers))
        if len(self.calls) == 1:
            self.gate.wait(LONG_S)
        if any(number > 100 and number % 2 for number in numbers):
            raise ZeroDivisionError("odd")
        if 1000 in numbers:
            raise Unavailable("away")
        return [KeyError(number) if number == 13 else 2 * number for number in numbers]


async def settled() -> None:
    """Everything that can happen by itself has happened."""
    for _ in range(20):
        await asyncio.sleep(0)


def behind_one(*numbers: int, key: int = 1_000_000) -> tuple[Slow, list[object]]:
    """What comes of numbers that are asked while another call is under way; numbers alike modulo `key` are of one."""

    async def scene() -> list[object]:
        together = RequestBatcher(slow, key=lambda number: number % key)
        first = asyncio.create_task(together.ask(1))
        await settled()
        others = [asyncio.create_task(together.ask(number)) for number in numbers]
        await settled()
        slow.gate.set()
        assert await first == 2
        return await asyncio.wait_for(asyncio.gather(*others, return_exceptions=True), LONG_S)

    slow = Slow()
    return slow, asyncio.run(scene())


def test_requests_arriving_during_a_call_are_batched_into_one_call() -> None:
    slow, answers = behind_one(2, 3, 4)
    assert slow.calls == [[1], [2, 3, 4]]
    assert answers == [4, 6, 8]


def test_caller_that_asks_again_after_its_answer_joins_waiting_batch() -> None:
    """Each transaction costs a write to the disk: half as many in it would be half as many answered."""

    async def scene() -> None:
        together = RequestBatcher(slow, key=lambda number: number)

        async def asks_twice() -> None:
            await together.ask(1)
            await together.ask(5)

        twice = asyncio.create_task(asks_twice())
        await settled()
        others = [asyncio.create_task(together.ask(number)) for number in (2, 3)]
        await settled()
        slow.gate.set()
        await asyncio.wait_for(asyncio.gather(twice, *others), LONG_S)

    slow = Slow()
    asyncio.run(scene())
    assert slow.calls == [[1], [2, 3, 5]]


def test_batcher_sends_waiting_requests_at_once_when_no_caller_returns() -> None:
    async def scene() -> tuple[int, int]:
        together = RequestBatcher(slow, key=lambda number: number % 2)
        first = asyncio.create_task(together.ask(1))
        await settled()
        others = [asyncio.create_task(together.ask(number)) for number in (2, 4, 6)]
        await settled()
        slow.gate.set()
        await asyncio.wait_for(first, LONG_S)
        await asyncio.wait_for(others[0], LONG_S)
        after_one = together._in_a_hurry
        await asyncio.wait_for(asyncio.gather(*others), LONG_S)
        return after_one, together._in_a_hurry

    slow = Slow()
    after_one, at_the_end = asyncio.run(scene())
    assert slow.calls == [[1], [2], [4], [6]]
    assert TRIED_AGAIN_AFTER >= after_one > at_the_end > 0, "waited for once, and then no more"


def test_an_answer_that_is_an_error_is_raised_to_its_asker_alone() -> None:
    slow, answers = behind_one(2, 13, 4)
    assert len(slow.calls) == 2
    assert (answers[0], answers[2]) == (4, 8)
    assert isinstance(answers[1], KeyError)


def test_failing_request_in_batch_does_not_fail_the_others() -> None:
    slow, answers = behind_one(2, 101, 4)
    assert slow.calls == [[1], [2, 101, 4], [2], [101], [4]]
    assert (answers[0], answers[2]) == (4, 8)
    assert isinstance(answers[1], ZeroDivisionError)


def test_while_the_database_is_away_nobody_is_asked_again_alone() -> None:
    slow, answers = behind_one(2, 1000, 4)
    assert slow.calls == [[1], [2, 1000, 4]]
    assert all(isinstance(answer, Unavailable) for answer in answers)


def test_two_of_one_key_are_never_in_one_call() -> None:
    slow, answers = behind_one(3, 4, 13, 23, key=10)
    assert slow.calls == [[1], [3, 4], [13], [23]]
    assert answers[:2] == [6, 8]


def test_a_call_is_bounded() -> None:
    slow, answers = behind_one(*range(2, 2 * MOST_AT_ONCE + 22, 2))
    assert [len(call) for call in slow.calls] == [1, MOST_AT_ONCE, 10]
    assert len(answers) == MOST_AT_ONCE + 10


def test_an_asker_that_leaves_takes_nobody_along() -> None:
    async def scene() -> None:
        together = RequestBatcher(slow, key=lambda number: number)
        first = asyncio.create_task(together.ask(1))
        await settled()
        leaving, staying = (asyncio.create_task(together.ask(number)) for number in (2, 3))
        await settled()
        leaving.cancel()
        await settled()
        slow.gate.set()
        assert await first == 2
        assert await asyncio.wait_for(staying, LONG_S) == 6
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert await together.ask(5) == 10

    slow = Slow()
    asyncio.run(scene())
