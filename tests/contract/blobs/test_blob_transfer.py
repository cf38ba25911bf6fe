"""The client's transfers against real storage, over real connections."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from random import Random

import httpx
import pytest
from tests.contract.blobs.storage_under_test import StorageUnderTest

from giornata.client.retry import Backoff
from giornata.client.storage.transfer import download, upload_file
from giornata.control.ports.blobs import SignedRequest
from giornata.domain.files.transfers import plan_parts
from giornata.protocol.uploads import SignedPart, SignedUrl, UploadTicket

BODY = Random(1).randbytes(17_000_000)
FAR = datetime(2100, 1, 1, tzinfo=UTC)
AT_ONCE = Backoff(retries=2, sleep=lambda _: None)


def url_of(signed: SignedRequest) -> SignedUrl:
    return SignedUrl(method=signed.method, url=signed.url, headers=signed.headers, expires_at=signed.expires_at)


@contextlib.contextmanager
def breaking_line(host: str, port: int, *, after_bytes: int) -> Iterator[tuple[int, list[socket.socket]]]:
    """A port that leads to another one, and hangs up on every connection after so many bytes of reply."""
    opened: list[socket.socket] = []

    def carry(near: socket.socket, far: socket.socket) -> None:
        far.sendall(near.recv(65_536))
        left_bytes = after_bytes
        while left_bytes and (data := far.recv(min(65_536, left_bytes))):
            near.sendall(data)
            left_bytes -= len(data)

    def accept(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # shut down
            while True:
                near, _ = listener.accept()
                with near, socket.create_connection((host, port)) as far:
                    opened.extend((near, far))
                    carry(near, far)

    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=accept, args=(listener,))
    thread.start()
    try:
        yield listener.getsockname()[1], opened
    finally:
        for each in (listener, *opened):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        thread.join(10)
        listener.close()


@pytest.mark.parametrize("size_bytes", [1, 1_000_000, 17_000_000])
def test_file_uploaded_and_downloaded_has_same_bytes(
    place: StorageUnderTest, http: httpx.Client, tmp_path: Path, size_bytes: int
) -> None:
    (tmp_path / "up").write_bytes(BODY[:size_bytes])
    digest = sha256(BODY[:size_bytes]).hexdigest()
    sizes, upload = plan_parts(size_bytes), None
    if sizes is None:
        signed = place.blobs.sign_put("a", size_bytes=size_bytes, sha256=digest, expires_in_s=60)
        ticket = UploadTicket(sha256=digest, exists=False, put=url_of(signed))
    else:
        upload = place.blobs.begin_multipart("a")
        parts = [
            SignedPart(number=n, size_bytes=size, request=url_of(place.blobs.sign_part("a", upload, n, size, 60)))
            for n, size in enumerate(sizes, start=1)
        ]
        ticket = UploadTicket(sha256=digest, exists=False, parts=tuple(parts))
    etags = upload_file(http, tmp_path / "up", ticket, renew=lambda _: [], backoff=AT_ONCE)
    if upload is not None:
        place.blobs.complete_multipart("a", upload, etags)
    assert place.blobs.digest("a").sha256 == digest
    wanted = url_of(place.blobs.sign_get("a", expires_in_s=60))
    download(http, wanted, tmp_path / "down", sha256=digest, size_bytes=size_bytes, backoff=AT_ONCE)
    assert (tmp_path / "down").read_bytes() == BODY[:size_bytes]


def test_a_late_url_is_renewed(place: StorageUnderTest, http: httpx.Client, tmp_path: Path) -> None:
    body = BODY[:1000]
    (tmp_path / "up").write_bytes(body)
    upload = place.blobs.begin_multipart("a")

    def sign(numbers: list[int], expires_in_s: int = 60) -> list[SignedPart]:
        signed = [place.blobs.sign_part("a", upload, number, len(body), expires_in_s) for number in numbers]
        return [
            SignedPart(number=n, size_bytes=len(body), request=url_of(s))
            for n, s in zip(numbers, signed, strict=True)
        ]

    late = sign([1], 1)
    # Storage alone knows that it has run out.
    late[0] = late[0].model_copy(update={"request": late[0].request.model_copy(update={"expires_at": FAR})})
    place.let_expire()
    ticket = UploadTicket(sha256=sha256(body).hexdigest(), exists=False, parts=tuple(late))
    etags = upload_file(http, tmp_path / "up", ticket, renew=sign, backoff=AT_ONCE)
    place.blobs.complete_multipart("a", upload, etags)
    assert place.blobs.size("a") == len(body)


def test_a_download_through_a_line_that_breaks(place: StorageUnderTest, http: httpx.Client, tmp_path: Path) -> None:
    place.blobs.write("a", [BODY])
    signed = place.blobs.sign_get("a", expires_in_s=60)
    host = httpx.URL(signed.url)
    with breaking_line(host.host, host.port or 80, after_bytes=5_000_000) as (port, opened):
        through = SignedUrl(
            method="GET",
            url=str(host.copy_with(port=port)),
            headers={"Host": f"{host.host}:{host.port}"},  # it is signed
            expires_at=signed.expires_at,
        )
        wanted = {"sha256": sha256(BODY).hexdigest(), "size_bytes": len(BODY)}
        download(http, through, tmp_path / "down", backoff=AT_ONCE, **wanted)
    assert (tmp_path / "down").read_bytes() == BODY
    assert len(opened) >= 2 * 4
