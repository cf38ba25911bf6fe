"""The whole life of no-op jobs in another queue: run by the interpreter in whose environment that queue is.

`python other_queue.py procrastinate|pgqueuer URL JOBS CLIENTS` prints one line of JSON: seconds to enqueue all jobs
one by one, from CLIENTS tasks at a time, and seconds until a worker of CLIENTS tasks has fetched and finished them.
Each queue's worker is its own, with its defaults: pgqueuer fetches ten jobs at a time. Imports nothing of ours.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable


async def enqueue_all(jobs: int, clients: int, enqueue: Callable[[], Awaitable[object]]) -> float:
    numbers = iter(range(jobs))

    async def client() -> None:
        for _ in numbers:
            await enqueue()

    began_s = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return time.perf_counter() - began_s


async def procrastinate_life(url: str, jobs: int, clients: int) -> dict[str, float]:
    import procrastinate

    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url, min_size=1, max_size=clients))
    done = 0

    @app.task(name="nothing")
    async def nothing() -> None:
        nonlocal done
        done += 1

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        enqueue_s = await enqueue_all(jobs, clients, nothing.defer_async)
        began_s = time.perf_counter()
        await app.run_worker_async(concurrency=clients, wait=False, install_signal_handlers=False)
        work_s = time.perf_counter() - began_s
    return {"enqueue_s": enqueue_s, "work_s": work_s, "done": done}


async def pgqueuer_life(url: str, jobs: int, clients: int) -> dict[str, float]:
    import asyncpg
    from pgqueuer import PgQueuer, Queries
    from pgqueuer.db import AsyncpgPoolDriver
    from pgqueuer.types import QueueExecutionMode

    done = 0
    async with asyncpg.create_pool(url, min_size=clients, max_size=clients) as pool:
        driver = AsyncpgPoolDriver(pool)
        queries = Queries(driver)
        await queries.install()
        enqueue_s = await enqueue_all(jobs, clients, lambda: queries.enqueue("nothing", None))
        queuer = PgQueuer(driver)

        @queuer.entrypoint("nothing")
        async def nothing(_job: object) -> None:
            nonlocal done
            done += 1

        began_s = time.perf_counter()
        await queuer.run(mode=QueueExecutionMode.drain, max_concurrent_tasks=max(20, clients))
        work_s = time.perf_counter() - began_s
    return {"enqueue_s": enqueue_s, "work_s": work_s, "done": done}


def main() -> None:
    name, url, jobs, clients = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    life = {"procrastinate": procrastinate_life, "pgqueuer": pgqueuer_life}[name]
    print(json.dumps(asyncio.run(life(url, jobs, clients))))


if __name__ == "__main__":
    main()
