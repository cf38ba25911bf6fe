"""Waiting without holding anybody up."""

import asyncio
import threading
from contextlib import ExitStack

from starlette.concurrency import run_in_threadpool

from giornata.api.wakeup import Wakeup

LONG_S = 20.0


async def settled() -> None:
    """Everything that can happen by itself has happened."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_waiting_looks_share_few_threads_and_leave_common_pool_free() -> None:
    gate, lock, inside, peak = threading.Event(), threading.Lock(), 0, 0

    def look() -> None:
        nonlocal inside, peak
        with lock:
            inside += 1
            peak = max(peak, inside)
        gate.wait(LONG_S)
        with lock:
            inside -= 1

    async def scene() -> None:
        wakeup = Wakeup(threads=2)
        looks = [asyncio.create_task(wakeup.look(look)) for _ in range(60)]
        while inside < 2:
            await asyncio.sleep(0)
        # Everything else has threads of its own: 60 waiting looks are more than the whole common pool.
        assert await asyncio.wait_for(run_in_threadpool(lambda: "served"), LONG_S / 2) == "served"
        gate.set()
        await asyncio.gather(*looks)

    asyncio.run(scene())
    assert peak == 2


def test_a_notice_between_two_waits_is_heard() -> None:
    async def scene() -> None:
        wakeup = Wakeup(threads=1)
        with wakeup.listen() as first, wakeup.listen() as second:
            assert wakeup.waiting == 2
            wakeup.notify()
            # Both return at once, and once.
            await asyncio.wait_for(first.wait(LONG_S), LONG_S / 2)
            await asyncio.wait_for(second.wait(LONG_S), LONG_S / 2)
            waits = asyncio.create_task(first.wait(LONG_S))
            await asyncio.sleep(0)
            assert not waits.done()
            threading.Thread(target=wakeup.notify).start()
            await asyncio.wait_for(waits, LONG_S / 2)
        assert wakeup.waiting == 0

    asyncio.run(scene())


def test_a_closed_one_lets_nobody_wait() -> None:
    async def scene() -> None:
        wakeup = Wakeup(threads=1)
        with wakeup.listen() as before:
            wakeup.close()
            await asyncio.wait_for(before.wait(LONG_S), LONG_S / 2)
            await asyncio.wait_for(before.wait(LONG_S), LONG_S / 2)
        assert wakeup.closed

    asyncio.run(scene())


def test_notice_wakes_one_listener_of_group_and_next_only_if_it_declines() -> None:
    """A thousand nodes wait for the same: a notice wakes one, and it says whether the next one should look."""

    async def scene() -> None:
        wakeup = Wakeup(threads=1)
        with wakeup.listen("group") as first, wakeup.listen("group") as second, wakeup.listen("others") as other:
            assert first.waiting_requests == 2
            for listener in (first, second, other):
                listener.nothing()
            waits = [asyncio.create_task(each.wait(LONG_S)) for each in (first, second, other)]
            await asyncio.sleep(0)
            wakeup.notify()
            await asyncio.wait_for(asyncio.gather(waits[0], waits[2]), LONG_S / 2)
            assert not waits[1].done()
            first.not_mine()
            await asyncio.wait_for(waits[1], LONG_S / 2)
            # Both have heard of it: nobody is woken any more.
            second.not_mine()
            waits = [asyncio.create_task(each.wait(LONG_S)) for each in (first, second)]
            await settled()
            assert not any(each.done() for each in waits)
            for each in waits:
                each.cancel()

    asyncio.run(scene())


def test_notice_while_one_looks_wakes_the_next_that_rests() -> None:
    """The one that looks may be about to take the first job, so another one looks for the second."""

    async def scene() -> None:
        wakeup = Wakeup(threads=1)
        with wakeup.listen("group") as first, wakeup.listen("group") as second:
            for listener in (first, second):
                listener.nothing()
            waits = [asyncio.create_task(each.wait(LONG_S)) for each in (first, second)]
            await asyncio.sleep(0)
            wakeup.notify()
            await asyncio.wait_for(waits[0], LONG_S / 2)  # it looks from now on, and has said nothing yet
            assert not waits[1].done()
            wakeup.notify()
            await asyncio.wait_for(waits[1], LONG_S / 2)

    asyncio.run(scene())


def test_listener_that_leaves_wakes_next_listener_of_its_group() -> None:
    """It may have found a job where there was another, or may have gone away before it looked."""

    async def scene() -> None:
        wakeup = Wakeup(threads=1)
        with wakeup.listen("group") as second:
            second.nothing()
            with wakeup.listen("group") as first:
                first.nothing()
                wait = asyncio.create_task(second.wait(LONG_S))
                await asyncio.sleep(0)
            await settled()
            assert not wait.done()  # it had said that there is nothing
            with wakeup.listen("group"):
                pass
            await asyncio.wait_for(wait, LONG_S / 2)

    asyncio.run(scene())


def test_a_notice_to_one_that_leaves_without_looking_again_is_passed_on() -> None:
    async def scene() -> None:
        wakeup = Wakeup(threads=1)
        leaving = ExitStack()
        first = leaving.enter_context(wakeup.listen("group"))
        with wakeup.listen("group") as second:
            wakeup.notify()  # both are looking: the first is to look once more
            first.nothing()
            second.nothing()
            wait = asyncio.create_task(second.wait(LONG_S))
            await settled()
            assert not wait.done()
            leaving.close()
            await asyncio.wait_for(wait, LONG_S / 2)

    asyncio.run(scene())


def test_a_notice_during_the_only_look_is_heard() -> None:
    async def scene() -> None:
        wakeup = Wakeup(threads=1)
        with wakeup.listen("group") as only:
            wakeup.notify()  # while it looks for the first time, perhaps too early
            only.nothing()
            await asyncio.wait_for(only.wait(LONG_S), LONG_S / 2)

    asyncio.run(scene())
