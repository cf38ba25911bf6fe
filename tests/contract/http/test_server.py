"""Stopping without cutting anybody off."""

import asyncio
import os
import signal
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from tests.fixtures.served import QUICK, Served, serving

from giornata.api.app import create_app
from giornata.api.server import LOOK_S, HttpServer, _Server, listen, serve

LONG_S = 30.0


class NotedLoop(asyncio.SelectorEventLoop):
    """Notes how long it is asked to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waits_s: list[float] = []

    def call_later(self, delay: float, *more: Any, **named: Any) -> asyncio.TimerHandle:
        self.waits_s.append(delay)
        return super().call_later(delay, *more, **named)


def long_claim(url: str, key: str, *, wait_s: float = LONG_S) -> httpx.Response:
    node = {"node_id": "node_00000001", "machine_id": "m", "name": "n"}
    claim = {"request_id": "request-1", "node": node, "kinds": ["x-count"], "wait_s": wait_s}
    return httpx.post(f"{url}/v1/node/claim", json=claim, headers={"Authorization": f"Bearer {key}"}, timeout=60)


def test_a_request_under_way_finishes(served: Served) -> None:
    begun, go_on = threading.Event(), threading.Event()
    app = create_app(served.ctx, settings=QUICK)

    @app.get("/slow")
    def slow() -> str:
        begun.set()
        go_on.wait(20)
        return "done"

    server = HttpServer(app, listen("127.0.0.1", 0))
    server.start()
    with ThreadPoolExecutor(2) as pool:
        reply = pool.submit(httpx.get, f"{server.url}/slow", timeout=30)
        assert begun.wait(20)
        stopping = pool.submit(server.stop)
        assert not stopping.done()
        go_on.set()
        assert reply.result().json() == "done"
        stopping.result()


def test_a_request_that_outlasts_the_grace_is_cut_off(served: Served) -> None:
    begun = threading.Event()
    app = create_app(served.ctx, settings=QUICK)

    @app.get("/endless")
    async def endless() -> str:
        begun.set()
        return str(await asyncio.Event().wait())

    server = HttpServer(app, listen("127.0.0.1", 0), grace_s=0)
    server.start()
    with ThreadPoolExecutor(1) as pool:
        reply = pool.submit(httpx.get, f"{server.url}/endless", timeout=30)
        assert begun.wait(20)
        server.stop()
        assert reply.result().status_code == 500


def test_a_signal_drains_then_stops(tmp_path: Path) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    seen: list[str] = []
    replies: list[Future[httpx.Response]] = []
    with serving(tmp_path) as served, ThreadPoolExecutor(1) as pool:
        app = create_app(served.ctx, settings=QUICK)
        urls: list[str] = []

        def started(url: str) -> None:
            seen.append("started")
            assert urls == [url]
            replies.append(pool.submit(long_claim, url, served.keys.node))
            while not list(served.client(served.keys.admin).nodes()):
                pass
            os.kill(os.getpid(), signal.SIGTERM)

        def before_stop() -> None:
            # Nodes that drain still reach the server.
            assert httpx.get(f"{urls[0]}/healthz").status_code == 200
            seen.append("drained")

        serve(app, "127.0.0.1", 0, on_bound=urls.append, on_started=started, before_stop=before_stop)
        assert replies[0].result(timeout=10).json()["lease"] is None
    assert seen == ["started", "drained"]
    assert signal.getsignal(signal.SIGTERM) is handler


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    forever = threading.Event()
    with serving(tmp_path) as served:
        app = create_app(served.ctx, settings=QUICK)

        def before_stop() -> None:
            os.kill(os.getpid(), signal.SIGINT)
            forever.wait(60)

        def started(_: str) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

        serve(app, "127.0.0.1", 0, on_started=started, before_stop=before_stop)
        assert not forever.is_set()
    forever.set()


def test_a_server_that_is_told_to_stop_looks_at_no_clock_first() -> None:
    async def ends_in_turns(turns: int) -> bool:
        server = _Server(uvicorn.Config(None, log_config=None), on_shutdown=lambda: None)
        idle = asyncio.create_task(server.main_loop())
        await asyncio.sleep(0)
        server.leave()
        for _ in range(turns):
            await asyncio.sleep(0)
        ended = idle.done()
        idle.cancel()
        return ended

    assert asyncio.run(ends_in_turns(20))


def test_a_server_without_requests_stops_after_one_look() -> None:
    loop = NotedLoop()
    server = _Server(uvicorn.Config(None, log_config=None), on_shutdown=lambda: None)
    server.servers = []
    loop.run_until_complete(server.shutdown())
    loop.close()
    assert loop.waits_s == [LOOK_S]
