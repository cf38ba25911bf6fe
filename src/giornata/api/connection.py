"""One connection, with the bounds that uvicorn leaves out.

It would wait for ever for the rest of a head, for a client that does not read, and for what comes behind a refusal.
The time that a body may take is bounded in `pace`, where an answer can still be given.
"""

import asyncio
import socket
import struct
from dataclasses import dataclass
from typing import cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a connection is kept for nothing.

    `head_s`: from its first moment, or a later request's first byte, to the end of the request's head. `reader_s`:
    while a reply waits to be read. `rest_s`: from the end of a reply to the end of a body that was not waited for.
    """

    head_s: float = 20.0
    reader_s: float = 60.0
    rest_s: float = 10.0


def bounded(patience: Patience) -> type[H11Protocol]:
    """The protocol for uvicorn's `http`."""
    return cast(type[H11Protocol], type("Bounded", (_Bounded,), {"patience": patience}))


class _Bounded(H11Protocol):
    """Two clocks: one for what the client is to send, one for what it is to read."""

    patience: Patience
    _sending: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_within(self.patience.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        self._is_read()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._sending is None and not self._busy():
            self._expect_within(self.patience.head_s)
        super().data_received(data)
        if self._busy():
            self._expect_nothing()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.get_write_buffer_size():
            self._has_to_read()
        if self._busy():  # it was waiting behind the one before
            return
        if self.conn.their_state is h11.SEND_BODY:
            self._expect_within(self.patience.rest_s)
        elif self.conn.trailing_data[0]:
            self._expect_within(self.patience.head_s)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._has_to_read()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._is_read()

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
        self._reading = self.loop.call_later(self.patience.reader_s, self._read_or_leave)

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
