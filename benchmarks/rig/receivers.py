"""Receivers of webhooks in one process: some answer at once, others never."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

from benchmarks.rig.wire import parsed_head

ANSWER = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"


@dataclass(slots=True)
class Receivers:
    """All receivers on one port; the path names the one that is asked. `latencies_s` are those of all that answer."""

    port: int = 0
    hanging: frozenset[str] = frozenset()
    latencies_s: dict[str, list[float]] = field(default_factory=dict)
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    def let_go(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close the connections that hang."""
        loop.call_soon_threadsafe(lambda: [each.close() for each in self._open])

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read a request, and answer it unless this receiver hangs."""
        self._open.add(writer)
        try:
            head = (await reader.readuntil(b"\r\n\r\n"))[:-4]
            name = head.split(b" ", 2)[1].decode()
            _, length_bytes = parsed_head(b"HTTP/1.1 000\r\n" + head)
            body = json.loads(await reader.readexactly(length_bytes))
            if name in self.hanging:
                await reader.read()
                return
            happened_s = datetime.fromisoformat(body["at"]).timestamp()
            self.latencies_s.setdefault(name, []).append(time.time() - happened_s)
            writer.write(ANSWER)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the sender gave up
        finally:
            self._open.discard(writer)
            writer.close()


@contextmanager
def receiving() -> Iterator[tuple[Receivers, asyncio.AbstractEventLoop]]:
    """Receivers on a free port, in a thread of their own."""
    receivers, loop = Receivers(), asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(receivers.take, "127.0.0.1", 0, backlog=1024))
    receivers.port = server.sockets[0].getsockname()[1]
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield receivers, loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
