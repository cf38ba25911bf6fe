"""What the tests of object storage share."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256

import httpx

from giornata.control.ports.blobs import Blobs, SignedRequest


@dataclass
class ShiftedClock:
    """The machine's clock, and what a test adds to it."""

    ahead_ms: int = 0

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageUnderTest:
    """Storage under test. `let_expire` returns when a URL of one second has run out."""

    blobs: Blobs
    unsigned_url: Callable[[str], str]
    let_expire: Callable[[], None]


def send(http: httpx.Client, signed: SignedRequest, body: bytes = b"", **changed: str) -> httpx.Response:
    """What a client that knows nothing of storage does with a signed request; `changed` tampers with it."""
    headers = {name: value for name, value in signed.headers.items() if name != "Content-Length"}
    method, url = changed.get("method", signed.method), changed.get("url", signed.url)
    return http.request(method, url, headers=headers, content=body if method == "PUT" else None)


def hex_of(body: bytes) -> str:
    return sha256(body).hexdigest()


def now() -> datetime:
    return datetime.now(UTC)
