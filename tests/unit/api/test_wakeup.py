"""Waiting without holding anybody up."""

import asyncio
import threading

from starlette.concurrency import run_in_threadpool

from giornata.api.wakeup import Wakeup

LONG_S = 20.0


def test_those_who_wait_share_a_few_threads() -> None:
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
