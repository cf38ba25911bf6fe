"""HTTP/1.1 by hand on raw sockets: a library's client would need more CPU than the server under test."""

import asyncio
import socket


def request(method: str, path: str, body: bytes, *, token: str, keep: bool = True) -> bytes:
    """The bytes of a request. `keep`: leave the connection open for another."""
    authorization = f"Authorization: Bearer {token}\r\n" if token else ""
    return (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{authorization}"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"Connection: {'keep-alive' if keep else 'close'}\r\n\r\n"
    ).encode() + body


def parsed_head(head: bytes) -> tuple[int, int]:
    """Status and content length."""
    length_bytes = 0
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length_bytes = int(value)
    return int(head[9:12]), length_bytes


class Wire:
    """One connection that is kept open. For one thread."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def call(self, method: str, path: str, body: bytes, *, token: str) -> tuple[int, bytes]:
        """Send and await the reply: status and body."""
        self._socket.sendall(request(method, path, body, token=token))
        read = self._rest
        while (end := read.find(b"\r\n\r\n")) < 0:
            read += self._more()
        status, length_bytes = parsed_head(read[:end])
        whole = end + 4 + length_bytes
        while len(read) < whole:
            read += self._more()
        self._rest = read[whole:]
        return status, read[end + 4 : whole]

    def _more(self) -> bytes:
        piece = self._socket.recv(65536)
        if not piece:
            raise ConnectionError("the server closed the connection")
        return piece


async def call_once(host: str, port: int, message: bytes, *, timeout_s: float) -> tuple[int, bytes]:
    """One request on a connection of its own, as an agent's comes that has been silent for half a minute."""
    async with asyncio.timeout(timeout_s):
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(message)
            status, length_bytes = parsed_head((await reader.readuntil(b"\r\n\r\n"))[:-4])
            return status, await reader.readexactly(length_bytes)
        finally:
            writer.close()
