"""Bounds on clients: their number, and the time for the head of a request, its body, and the reading of a reply.

uvicorn bounds none of these. The server takes so many connections, and tells others that it is full. A reverse proxy
usually bounds times; without a proxy this module keeps one client from holding connections or threads for ever.
`bounded` extends uvicorn's protocol for heads, replies, and bodies that nobody waits for. `BodyPace` bounds a body
where a refusal can still be sent.
"""

import asyncio
import socket
import struct
import time
from dataclasses import dataclass
from typing import cast

import httptools
from starlette.types import Message, Receive
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from giornata.api.replies.problems import problem_of
from giornata.domain.errors import TooSlow, Unavailable

# What may have come of a head that still goes on.
MAX_HEADER_BYTES = 32 * 2**10
REFUSED_FOR_S = 1.0
MOST_REFUSED = 64
"""Connections at a time that are told that the server is full; further ones are cut off."""
_BODY = (
    problem_of(Unavailable("this server has as many connections open as it takes; try again soon"))
    .model_dump_json()
    .encode()
)
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\nRetry-After: 5\r\n"
    b"Connection: close\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """The times for which a connection is kept for nothing, in seconds.

    `head_s`: from its first moment, or a later request's first byte, to the end of the request's head. `reader_s`:
    while a reply waits to be read. `rest_s`: from the end of a reply to the end of a body that was not waited for.
    """

    head_s: float = 20.0
    reader_s: float = 60.0
    rest_s: float = 10.0


def bounded(timeouts: Timeouts, *, most_connections: int | None = None) -> type[HttpToolsProtocol]:
    """Return the protocol class for uvicorn's `http`, for so many connections at a time."""
    bounds: dict[str, object] = {"timeouts": timeouts, "most_connections": most_connections, "refused": set()}
    return cast(type[HttpToolsProtocol], type("Bounded", (_Bounded,), bounds))


class _Bounded(HttpToolsProtocol):
    """A protocol with two clocks: one for what the client is to send, one for what it is to read."""

    timeouts: Timeouts
    most_connections: int | None
    refused: set[asyncio.Transport]
    _sending: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None
    _in_head = False
    _head_bytes = 0
    _read_bytes = 0
    _refusal: str | None = None
    _refused: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if self.most_connections is not None and len(self.connections) >= self.most_connections:
            self._refuse(transport)
            return
        super().connection_made(transport)
        self._expect_within(self.timeouts.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._refused is not None:
            self.refused.discard(self._refused)
            return
        self._expect_nothing()
        self._is_read()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused is not None:
            return
        if self._sending is None and not self._busy():
            self._expect_within(self.timeouts.head_s)
        self._read_bytes = len(data)
        self._unset_keepalive_if_required()
        self._parse(data)
        if self._busy():
            self._expect_nothing()
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEADER_BYTES:
                self.send_400_response("The head of this request is too long.")

    def on_message_begin(self) -> None:
        # What was read with it may belong to requests before it: of a later head, that does not count.
        self._head_bytes = 0 if self.cycle is None else -self._read_bytes
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if not self._wants_another_protocol():
            self._in_head = False
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if self._wants_another_protocol():
            return
        super().on_message_complete()
        if not self._busy():  # the rest of a body that was not waited for
            self._expect_within(self.timeouts.head_s)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.get_write_buffer_size():
            self._has_to_read()
        if self._busy():  # it was waiting behind the one before
            return
        if self._refusal is not None:
            super().send_400_response(self._refusal)
        elif self.cycle.more_body:
            self._expect_within(self.timeouts.rest_s)
        elif self._in_head:
            self._expect_within(self.timeouts.head_s)

    def send_400_response(self, msg: str) -> None:
        if self._busy():  # an answer to what came before goes first
            self._refusal = msg
            self.flow.pause_reading()
        else:
            super().send_400_response(msg)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._has_to_read()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._is_read()

    def _refuse(self, transport: asyncio.Transport) -> None:
        """Tell the client that the server is full, whatever it asks, and close soon."""
        self._refused = transport
        if len(self.refused) >= MOST_REFUSED:
            transport.abort()
            return
        self.refused.add(transport)
        transport.write(_FULL)
        transport.write_eof()
        # At once, a client that is still sending would not get to read it.
        self.loop.call_later(REFUSED_FOR_S, transport.abort)

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # A server may ignore `Upgrade` (RFC 9110, section 7.8), but this parser then leaves out the body.
            # So another parser gets the same head without the upgrade.
            rest, head = data[upgrade.args[0] :], self._head_without_upgrade()
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            self._parse(head + rest)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def _wants_another_protocol(self) -> bool:
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

    def _head_without_upgrade(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [self.parser.get_method() + b" " + self.url + b" HTTP/" + version]
        lines += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def _busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _expect_within(self, seconds: float) -> None:
        self._expect_nothing()
        self._sending = self.loop.call_later(seconds, self.transport.abort)

    def _expect_nothing(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None

    def _has_to_read(self) -> None:
        self._is_read()
        self._reading = self.loop.call_later(self.timeouts.reader_s, self._read_or_leave)

    def _is_read(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _read_or_leave(self) -> None:
        if self.transport.get_write_buffer_size():
            # Or the kernel would go on offering what it holds for minutes.
            sock: socket.socket = self.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyPace:
    """The time that we wait for a body: `grace_s`, and one second more for each `bytes_per_s` that have come.

    Only time spent waiting for the client counts, not time in which nobody here was ready to read.
    """

    grace_s: float
    bytes_per_s: int

    def kept(self, receive: Receive) -> Receive:
        """Return `receive`, until the body is whole, with an end. It raises TooSlow, and so does every call after
        that.
        """
        waited_s, came_bytes, whole = 0.0, 0, False

        async def in_time() -> Message:
            nonlocal waited_s, came_bytes, whole
            if whole:
                return await receive()
            began_s = time.monotonic()
            try:
                async with asyncio.timeout(self.grace_s + came_bytes / self.bytes_per_s - waited_s):
                    message = await receive()
            except TimeoutError:
                raise TooSlow(f"{came_bytes} bytes of the body came in time, and then no more") from None
            finally:
                waited_s += time.monotonic() - began_s
            came_bytes += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            return message

        return in_time
