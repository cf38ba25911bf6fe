"""However many lists are asked for at once: a few run at a time, off the event loop, and everything else goes on."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from tests.fixtures.served import QUICK, Served, serving

from giornata.api.app import create_app
from giornata.api.requests.lists import Lists
from giornata.api.server import HttpServer, listen
from giornata.control.ports.store import Transaction
from giornata.protocol.model import Reply

LISTS = 8
AT_ONCE = 2


class _Gate:
    """A store whose readers stand still until it opens. It knows how many stand there, and in which threads."""

    def __init__(self, store: object) -> None:
        self._store = store
        self._open, self._lock = threading.Event(), threading.Lock()
        self.inside, self.most = 0, 0
        self.full = threading.Event()

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    @contextmanager
    def read(self) -> Iterator[Transaction]:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
            if self.inside >= AT_ONCE:
                self.full.set()
        try:
            assert self._open.wait(60)
            with self._store.read() as tx:  # type: ignore[attr-defined]
                yield tx
        finally:
            with self._lock:
                self.inside -= 1

    def open(self) -> None:
        self._open.set()


class _Still:
    """A clock that stands still: nobody who is remembered is forgotten."""

    def __init__(self, at_ms: int) -> None:
        self._at_ms = at_ms

    def now_ms(self) -> int:
        return self._at_ms


@pytest.fixture
def gated(tmp_path: Path) -> Iterator[tuple[Served, str, _Gate]]:
    """A second server on the same store, which stands still."""
    with serving(tmp_path) as served:
        served.call("GET", "/v1/jobs", served.keys.member)  # its key is remembered from here on
        gate, clock = _Gate(served.ctx.store), _Still(served.ctx.clock.now_ms())
        ctx = replace(served.ctx, store=gate, clock=clock)  # type: ignore[arg-type]
        app = create_app(ctx, settings=replace(QUICK, list_threads=AT_ONCE))
        server = HttpServer(app, listen("127.0.0.1", 0), grace_s=5)
        server.start()
        try:
            yield served, server.url, gate
        finally:
            gate.open()
            server.stop()


def test_the_server_answers_while_lists_stand_still(gated: tuple[Served, str, _Gate]) -> None:
    served, url, gate = gated
    headers = {"Authorization": f"Bearer {served.keys.member}"}
    with ThreadPoolExecutor(LISTS) as pool:
        try:
            lists = [pool.submit(served.http.get, f"{url}/v1/jobs", headers=headers) for _ in range(LISTS)]
            assert gate.full.wait(60)
            assert served.http.get(f"{url}/healthz").status_code == 200
            assert gate.inside == AT_ONCE
        finally:
            gate.open()
        assert [each.result().status_code for each in lists] == [200] * LISTS
    assert gate.most == AT_ONCE


class _ListPage(Reply):
    thread: str


def test_pages_are_made_and_written_in_other_threads() -> None:
    writers: set[str] = set()

    class Watched(_ListPage):
        def model_dump_json(self, **how: object) -> str:  # type: ignore[override]
            writers.add(threading.current_thread().name)
            return super().model_dump_json(**how)  # type: ignore[arg-type]

    def read() -> Watched:
        return Watched(thread=threading.current_thread().name)

    def asked(lists: Lists) -> Callable[[], object]:
        return lambda: lists.page(read)

    async def all_at_once() -> str:
        lists = Lists(threads=AT_ONCE)
        async with anyio.create_task_group() as tasks:
            for _ in range(LISTS):
                tasks.start_soon(asked(lists))  # type: ignore[arg-type]
        return threading.current_thread().name

    loop = anyio.run(all_at_once)
    assert loop not in writers
    assert len(writers) <= AT_ONCE
