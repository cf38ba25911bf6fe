"""Serve the API on a socket. It stops without cutting anybody off: requests finish, and those that only wait are let
go.
"""

import asyncio
import contextlib
import errno
import gc
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn
from fastapi import FastAPI

from giornata.api.requests.connection import Timeouts, bounded
from giornata.domain.errors import Fault, InvalidInput, Unavailable

log = logging.getLogger("giornata.api")

GRACE_S = 20
START_TIMEOUT_S = 30.0
BACKLOG = 2048
LARGEST_PORT = 65_535
# The Date header has whole seconds.
DATE_S = 1.0
# Between looks whether a request is still under way when the server stops.
LOOK_S = 0.01
# Made since the last look for garbage before the next one; Python has 700.
NEW_OBJECTS = 10_000


def listen(host: str, port: int) -> socket.socket:
    """Return a bound socket; port 0 picks a free one. Raises Unavailable for a port in use, else InvalidInput."""
    if not 0 <= port <= LARGEST_PORT:
        raise InvalidInput([Fault(where="port", message=f"{port} is not a port", hint=f"0 to {LARGEST_PORT}")])
    try:
        return _bound(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            hint = "Choose another port with --port; --port 0 takes a free one."
            raise Unavailable(f"port {port} of {host} is in use", hint=hint) from error
        fault = Fault(where="host", message=f"cannot listen on {host}:{port}: {error.strerror or error}")
        raise InvalidInput([fault]) from error


def _bound(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


class HttpServer:
    """Serves `app` on a bound socket, in a thread of its own (`start`) or in the caller's (`run`)."""

    def __init__(
        self, app: FastAPI, sock: socket.socket, *, grace_s: int = GRACE_S, timeouts: Timeouts | None = None
    ) -> None:
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
            proxy_headers=False,
            http=bounded(timeouts or Timeouts(), most_connections=app.state.settings.max_connections),
            timeout_keep_alive=75,
            timeout_graceful_shutdown=grace_s,
        )
        self._sock, self._server = sock, _Server(config, on_shutdown=app.state.wakeup.close)
        self._thread: threading.Thread | None = None
        self._over = threading.Event()

    @property
    def url(self) -> str:
        """The server's `http://host:port`, with the port that was really bound."""
        host, port = self._sock.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def run(self) -> None:
        """Serve until `stop` is called; signals are the caller's."""
        try:
            self._server.run(sockets=[self._sock])
        finally:
            self._over.set()
            self._server.ready.set()

    def start(self) -> None:
        """Serve in a thread; returns when requests are accepted. Raises Unavailable when that fails."""
        self._thread = threading.Thread(target=self.run, name="http", daemon=True)
        self._thread.start()
        self._server.ready.wait(START_TIMEOUT_S)
        if self._over.is_set() or not self._server.started:
            raise Unavailable("the HTTP server did not start; its log says why")

    def stop(self, *, at_once: bool = False) -> None:
        """Take no more requests and let those under way finish, up to the grace; `at_once` cuts them off."""
        self._server.force_exit = self._server.force_exit or at_once
        self._server.leave()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()


def serve(
    app: FastAPI,
    host: str,
    port: int,
    *,
    on_bound: Callable[[str], None] | None = None,
    on_started: Callable[[str], None] | None = None,
    before_stop: Callable[[], None] | None = None,
    grace_s: int = GRACE_S,
) -> None:
    """Serve until SIGTERM or SIGINT, then stop gracefully; a second signal cuts everything off.

    `on_bound` gets the URL before the first request can come, `on_started` once requests are accepted.
    `before_stop` runs after the first signal while requests are still served: nodes that drain need the server to
    take their checkpoints. Call it in the main thread.
    """
    server = HttpServer(app, listen(host, port), grace_s=grace_s)
    asked, again = threading.Event(), threading.Event()
    if on_bound is not None:
        on_bound(server.url)
    _spare_what_stays()
    with _signals(asked, again):
        server.start()
        if on_started is not None:
            on_started(server.url)
        asked.wait()
        leaving = threading.Thread(target=_leave, args=(server, before_stop), name="leaving", daemon=True)
        leaving.start()
        while leaving.is_alive():
            leaving.join(0.2)
            if again.is_set():
                server.stop(at_once=True)
                return


def _spare_what_stays() -> None:
    """Freeze the objects that stay for ever: searching them for garbage took a tenth of a busy server's time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS)


def _leave(server: HttpServer, before_stop: Callable[[], None] | None) -> None:
    if before_stop is not None:
        before_stop()
    server.stop()


@contextlib.contextmanager
def _signals(asked: threading.Event, again: threading.Event) -> Iterator[None]:
    def handle(_signal: int, _frame: FrameType | None) -> None:
        (again if asked.is_set() else asked).set()

    before = {each: signal.signal(each, handle) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


class _Server(uvicorn.Server):
    """A uvicorn server that says when it is ready, lets waiting requests go when it stops, and leaves signals to its
    owner.
    """

    def __init__(self, config: uvicorn.Config, *, on_shutdown: Callable[[], None]) -> None:
        super().__init__(config)
        self.ready = threading.Event()
        self._on_shutdown = on_shutdown
        self._leaving = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def leave(self) -> None:
        """End `main_loop` at once. Safe from every thread, before the start and after the end too."""
        self.should_exit = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the server has ended
                self._loop.call_soon_threadsafe(self._leaving.set)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    async def main_loop(self) -> None:
        """Renew the Date header each second. uvicorn looks ten times a second whether it is to end."""
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), DATE_S)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop as uvicorn does, which sleeps 0.1 s though nothing may be under way, and then between its looks."""
        self._on_shutdown()
        for server in self.servers:
            server.close()
        for sock in sockets or []:
            sock.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                await self._end_of_requests()
        except TimeoutError:
            log.error("requests under way are cut off: they took longer than the grace")
            for task in self.server_state.tasks:
                task.cancel()

    async def _end_of_requests(self) -> None:
        left = True
        while left and not self.force_exit:
            await asyncio.sleep(LOOK_S)
            left = bool(self.server_state.connections or self.server_state.tasks)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
