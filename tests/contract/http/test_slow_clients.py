"""Clients that take their time, on real sockets: each is let go, and none of them is in another's way.

Each bound has its counterpart: somebody who is slow within it is served.
"""

import contextlib
import hashlib
import json
import re
import select
import socket
from collections.abc import Iterator

import httpx
import pytest
from tests.contract.http.test_blobs import ticket
from tests.contract.http.test_refusals import NODE, lease
from tests.contract.http.test_server import long_claim
from tests.fixtures.served import QUICK, Served

from giornata.api.app import create_app
from giornata.api.requests.connection import MAX_HEADER_BYTES, Timeouts
from giornata.api.server import HttpServer, listen
from giornata.api.settings import ApiSettings

UNHURRIED = Timeouts(head_s=3600, reader_s=3600, rest_s=3600)
HURRIED = Timeouts(head_s=0.3, reader_s=0.3, rest_s=0.3)
HEAD = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
FOR_EVER_S = 20
JOB = {"kind": "x-count", "spec": {"steps": 5}}


@contextlib.contextmanager
def hurried(served: Served, timeouts: Timeouts = HURRIED, **settings: float) -> Iterator[HttpServer]:
    """The same rig behind a server that does not wait long."""
    app = create_app(served.ctx, settings=ApiSettings(stream_poll_s=QUICK.stream_poll_s, **settings))  # type: ignore[arg-type]
    server = HttpServer(app, listen("127.0.0.1", 0), grace_s=5, timeouts=timeouts)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def connected(server: HttpServer) -> Iterator[socket.socket]:
    url = httpx.URL(server.url)
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)  # what is not read is soon in the way
        sock.settimeout(FOR_EVER_S)
        sock.connect((url.host, url.port or 0))
        yield sock


def told(sock: socket.socket) -> bytes:
    """All that comes until the other side closes. A timeout is an error."""
    said = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := sock.recv(65536):
            said += chunk
    return said


def reply(sock: socket.socket) -> bytes:
    """One reply that says how long it is."""
    said = b""
    while b"\r\n\r\n" not in said:
        said += sock.recv(1)
    length = re.search(rb"\r\ncontent-length: (\d+)\r\n", said)
    assert length is not None, said
    return said + sock.recv(int(length[1]), socket.MSG_WAITALL)


def trickled(sock: socket.socket, byte: bytes = b"x") -> bytes:
    """Send a byte ever so often, until the other side has had enough; what it said then."""
    for _ in range(400):
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(byte)
        readable, _, _ = select.select([sock], [], [], 0.05)
        if readable:
            return told(sock)
    pytest.fail("it would have listened for ever")


def posted(length: int, path: str, key: str) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    ).encode()


def is_too_slow(said: bytes) -> bool:
    head, _, body = said.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 "), said
    assert b"connection: close" in head.lower()
    problem = json.loads(body)
    assert (problem["code"], problem["retryable"]) == ("too-slow", True)
    return True


def test_silent_connection_is_closed_by_server(served: Served) -> None:
    with hurried(served) as server, connected(server) as sock:
        assert told(sock) == b""


@pytest.mark.parametrize("before", [b"GET /", b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: "])
def test_a_head_that_never_ends(served: Served, before: bytes) -> None:
    with hurried(served) as server, connected(server) as sock:
        sock.sendall(before)
        assert trickled(sock) == b""


def test_a_second_head_that_never_ends(served: Served) -> None:
    with hurried(served) as server, connected(server) as sock:
        sock.sendall(HEAD + b"\r\n")
        assert reply(sock).startswith(b"HTTP/1.1 200 ")
        sock.sendall(HEAD)
        assert trickled(sock) == b""


def test_a_head_behind_another_that_never_ends(served: Served) -> None:
    with hurried(served) as server, connected(server) as sock:
        sock.sendall(HEAD + b"\r\n" + HEAD)
        assert told(sock).count(b"HTTP/1.1 200 ") == 1


def test_a_head_in_pieces_and_one_behind_another(served: Served) -> None:
    with hurried(served, Timeouts()) as server, connected(server) as sock:
        sock.sendall(HEAD[:9])
        sock.sendall(HEAD[9:] + b"\r\n" + HEAD)
        assert reply(sock).startswith(b"HTTP/1.1 200 ")
        sock.sendall(b"Connection: close\r\n\r\n")
        assert told(sock).count(b"HTTP/1.1 200 ") == 1


def test_a_head_that_is_too_long(served: Served) -> None:
    with hurried(served, UNHURRIED) as server, connected(server) as sock:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(HEAD + b"X-Long: " + b"x" * (2 * MAX_HEADER_BYTES))
        assert told(sock)[:13] in (b"HTTP/1.1 400 ", b"")  # what is unread may take the answer with it


def test_a_later_head_that_is_too_long(served: Served) -> None:
    with hurried(served, UNHURRIED) as server, connected(server) as sock:
        sock.sendall(HEAD + b"\r\n")
        assert reply(sock).startswith(b"HTTP/1.1 200 ")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(HEAD)
            for _ in range(20):
                sock.sendall(b"X-Long: " + b"x" * (MAX_HEADER_BYTES // 2) + b"\r\n")
        assert told(sock)[:13] in (b"HTTP/1.1 400 ", b"")


def test_a_head_as_long_as_it_may_be(served: Served) -> None:
    with hurried(served, UNHURRIED) as server, connected(server) as sock:
        for _ in range(2):
            sock.sendall(HEAD + b"X-Long: " + b"x" * (MAX_HEADER_BYTES - len(HEAD) - 20))
            sock.sendall(b"\r\n\r\n")
            assert reply(sock).startswith(b"HTTP/1.1 200 ")


def test_a_head_behind_a_large_body(served: Served) -> None:
    body = json.dumps(JOB).encode().ljust(2 * MAX_HEADER_BYTES)
    with hurried(served, UNHURRIED) as server, connected(server) as sock:
        sock.sendall(posted(len(body), "/v1/jobs", served.keys.member) + body + HEAD)
        assert reply(sock).startswith(b"HTTP/1.1 201 ")
        sock.sendall(b"\r\n")
        assert reply(sock).startswith(b"HTTP/1.1 200 ")


def test_request_that_is_not_http_gets_400(served: Served) -> None:
    with hurried(served, UNHURRIED) as server, connected(server) as sock:
        sock.sendall(b"\x16\x03\x01")
        assert told(sock).startswith(b"HTTP/1.1 400 ")


def test_bytes_that_are_not_http_after_a_request_get_400_after_its_response(served: Served) -> None:
    claim = {"request_id": "request-1", "node": NODE, "kinds": ["x-count"], "wait_s": 0.5}
    body = json.dumps(claim).encode()
    with hurried(served, UNHURRIED) as server, connected(server) as sock:
        sock.sendall(posted(len(body), "/v1/node/claim", served.keys.node) + body + b"\x16\x03\x01")
        said = told(sock)
        assert said.startswith(b"HTTP/1.1 200 ")
        assert said.count(b"HTTP/1.1 400 ") == 1


def test_request_to_upgrade_to_http2_is_answered_over_http1(served: Served) -> None:
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
    body = json.dumps(JOB).encode()
    head = posted(len(body), "/v1/jobs", served.keys.member).removesuffix(b"\r\n")
    for request, status in ((HEAD + upgrade, b"200"), (head + upgrade + body, b"201")):
        with hurried(served, UNHURRIED) as server, connected(server) as sock:
            for _ in range(2):
                sock.sendall(request[:-3])
                sock.sendall(request[-3:])
                assert reply(sock).startswith(b"HTTP/1.1 " + status)


def test_a_reply_that_takes_longer_than_a_head(served: Served) -> None:
    with hurried(served, claim_poll_s=0.05) as server:
        reply = long_claim(server.url, served.keys.node, wait_s=1.0)
        assert reply.json()["reason"] == "empty-queue"


def test_a_json_body_that_never_ends(served: Served) -> None:
    with hurried(served, body_grace_s=0.3) as server, connected(server) as sock:
        sock.sendall(posted(10_000, "/v1/jobs", served.keys.member))
        assert is_too_slow(trickled(sock))


def test_a_json_body_in_pieces(served: Served) -> None:
    body = json.dumps(JOB).encode()
    with hurried(served) as server, connected(server) as sock:
        sock.sendall(posted(len(body), "/v1/jobs", served.keys.member))
        sock.sendall(body[:5])
        sock.sendall(body[5:])
        assert reply(sock).startswith(b"HTTP/1.1 201 ")


def test_every_byte_that_comes_buys_time(served: Served) -> None:
    with hurried(served, body_grace_s=0.3, body_bytes_per_s=1) as server, connected(server) as sock:
        body = json.dumps(JOB).encode().ljust(24)
        sock.sendall(posted(len(body), "/v1/jobs", served.keys.member))
        for number in range(len(body) - 1):
            sock.sendall(body[number : number + 1])
            assert select.select([sock], [], [], 0.05)[0] == [], "24 bytes have 24 s"
        sock.sendall(body[-1:])
        assert reply(sock).startswith(b"HTTP/1.1 201 ")


def test_slow_uploads_take_no_thread_for_ever(served: Served) -> None:
    body = b"0123456789"
    asked = ticket(served, body)
    url = httpx.URL(asked["put"]["url"])
    head = f"PUT {url.raw_path.decode()} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with hurried(served, body_grace_s=0.3, blob_threads=1) as server:
        with connected(server) as first, connected(server) as second:
            for sock in (first, second):
                sock.sendall(head + body[:1])
            assert is_too_slow(told(first))
            assert is_too_slow(told(second))
        response = httpx.put(f"{server.url}{url.raw_path.decode()}", content=body)
        assert response.status_code == 200, response.text
    done = served.call("POST", f"/v1/uploads/{asked['upload_id']}/complete", served.keys.member, json={})
    assert done.json()["sha256"] == hashlib.sha256(body).hexdigest()


def test_a_body_that_nobody_waits_for(served: Served) -> None:
    with hurried(served) as server, connected(server) as sock:
        sock.sendall(posted(10_000, "/v1/nothing%00", served.keys.member))
        assert told(sock).startswith(b"HTTP/1.1 400 ")


def test_the_rest_of_a_body_that_nobody_waits_for(served: Served) -> None:
    refused = b"GET /v1/blobs/default/x HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n"
    with hurried(served) as server, connected(server) as sock:
        sock.sendall(refused)
        assert reply(sock).startswith(b"HTTP/1.1 403 ")
        assert told(sock) == b""
    with hurried(served, UNHURRIED) as server, connected(server) as sock:
        sock.sendall(refused)
        assert reply(sock).startswith(b"HTTP/1.1 403 ")
        sock.sendall(b"0123456789" + HEAD + b"\r\n")
        assert reply(sock).startswith(b"HTTP/1.1 200 ")


def test_a_slow_head_behind_such_a_rest(served: Served) -> None:
    with hurried(served, Timeouts(head_s=3600, rest_s=0.5)) as server, connected(server) as sock:
        sock.sendall(b"GET /v1/blobs/default/x HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n")
        assert reply(sock).startswith(b"HTTP/1.1 403 ")
        sock.sendall(b"0123456789" + HEAD + b"X-Long: ")
        for _ in range(20):
            sock.sendall(b"x")
            assert select.select([sock], [], [], 0.05)[0] == [], "it was cut off"
        sock.sendall(b"\r\n\r\n")
        assert reply(sock).startswith(b"HTTP/1.1 200 ")


def filled_log(served: Served) -> str:
    mine = lease(served)
    for first in range(0, 800, 100):
        body = {"first": first, "lines": ["x" * 8000] * 100}
        path = f"/v1/node/attempts/{mine['attempt_id']}/log"
        assert served.call("POST", path, mine["token"], json=body).status_code == 204
    return f"/v1/jobs/{mine['job_id']}/logs"


def stream_of(path: str, key: str) -> bytes:
    return (
        f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nAccept: text/event-stream\r\n\r\n"
    ).encode()


def test_a_follower_that_does_not_read(served: Served) -> None:
    path = filled_log(served)
    with hurried(served) as server, connected(server) as sock:
        sock.sendall(stream_of(path, served.keys.member))
        waiting = select.poll()
        waiting.register(sock, select.POLLERR | select.POLLHUP)
        assert waiting.poll(FOR_EVER_S * 1000), "it was waited for"


def test_a_follower_that_reads_slowly(served: Served) -> None:
    path = filled_log(served)
    with hurried(served, Timeouts(reader_s=5)) as server, connected(server) as sock:
        sock.sendall(stream_of(path, served.keys.member))
        seen = b""
        while seen.count(b"\nid: ") < 800:
            chunk = sock.recv(65536)
            assert chunk, "it was cut off"
            seen += chunk
