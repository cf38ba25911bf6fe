"""Objects on their way from storage."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import httpx
import pytest
from tests.unit.client.transfer_time import START, Answer, TransferTime, status

from giornata.client.storage.transfer import download
from giornata.domain.errors import BlobMismatch, BlobMissing, Forbidden, Unavailable
from giornata.protocol.uploads import SignedUrl

BODY = os.urandom(1_000_000)
SHA256 = sha256(BODY).hexdigest()


@pytest.fixture
def time() -> TransferTime:
    return TransferTime()


class Body(httpx.SyncByteStream):
    """A body in pieces; `broken` ends it with the connection."""

    def __init__(self, *pieces: bytes, broken: bool = False) -> None:
        self._pieces, self._broken = pieces, broken

    def __iter__(self) -> Iterator[bytes]:
        yield from self._pieces
        if self._broken:
            raise httpx.ReadError("connection reset by peer")


def ok(*pieces: bytes, code: int = 200) -> Answer:
    return lambda request: httpx.Response(code, stream=Body(*pieces))


@dataclass
class Origin:
    """Serves BODY, with ranges; `faults` come first, one a request."""

    body: bytes = BODY
    ranges: bool = True
    faults: list[Answer] = field(default_factory=list)
    asked: list[str | None] = field(default_factory=list)
    requests: list[httpx.Request] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        self.asked.append(request.headers.get("range"))
        return (self.faults.pop(0) if self.faults else self.answer)(request)

    def answer(self, request: httpx.Request, end: int | None = None) -> httpx.Response:
        start = int(request.headers.get("range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        if not start or not self.ranges:
            start = 0
        rest, total = self.body[start:], len(self.body)
        headers = {"Content-Length": str(len(rest))}
        if start:
            headers["Content-Range"] = f"bytes {start}-{total - 1}/{total}"
        code = 206 if start else 200
        return httpx.Response(code, headers=headers, stream=Body(rest[:end], broken=end is not None))

    def breaking_off(self, after_bytes: int) -> Answer:
        return lambda request: self.answer(request, after_bytes)


SIGNED = SignedUrl(method="GET", url="https://storage.test/a?sig=1", headers={}, expires_at=START)


def fetch(origin: Origin, path: Path, time: TransferTime, **options: object) -> None:
    wanted = {"sha256": SHA256, "size_bytes": len(BODY)} | options
    with httpx.Client(transport=httpx.MockTransport(origin), headers={"Authorization": "key"}) as http:
        download(http, SIGNED, path, backoff=time.backoff(), **wanted)  # type: ignore[arg-type]


def assert_only(path: Path, body: bytes = BODY) -> None:
    assert path.read_bytes() == body
    assert list(path.parent.iterdir()) == [path], "something was left beside it"


def test_download_writes_whole_file_and_reports_progress(tmp_path: Path, time: TransferTime) -> None:
    origin, path, seen = Origin(), tmp_path / "new" / "model", list[int]()
    fetch(origin, path, time, progress=seen.append)
    assert_only(path)
    assert seen[-1] == len(BODY)
    assert seen == sorted(seen)
    assert "authorization" not in origin.requests[0].headers
    assert origin.requests[0].headers["accept-encoding"] == "identity"
    assert origin.requests[0].extensions["timeout"]["read"] > 0


def test_download_of_empty_object_writes_empty_file(tmp_path: Path, time: TransferTime) -> None:
    fetch(Origin(b""), tmp_path / "a", time, sha256=sha256(b"").hexdigest(), size_bytes=0)
    assert_only(tmp_path / "a", b"")


def test_a_dropped_connection_is_taken_up_where_it_broke_off(tmp_path: Path, time: TransferTime) -> None:
    origin = Origin()
    # More breaks than tries in a row: each brings it further, so it goes on.
    origin.faults = [origin.breaking_off(100_000)] * 6
    fetch(origin, tmp_path / "a", time)
    assert_only(tmp_path / "a")
    assert origin.asked == [None, *(f"bytes={n}00000-" for n in range(1, 7))]


def test_a_server_without_ranges_is_asked_for_all_of_it(tmp_path: Path, time: TransferTime) -> None:
    origin = Origin(ranges=False)
    origin.faults = [origin.breaking_off(100_000)]
    fetch(origin, tmp_path / "a", time)
    assert_only(tmp_path / "a")


@pytest.mark.parametrize("answer", [status(416), ok(BODY, code=206)])
def test_a_server_that_cannot_go_on_is_asked_for_all_of_it(
    tmp_path: Path, time: TransferTime, answer: Answer
) -> None:
    origin = Origin()
    origin.faults = [origin.breaking_off(100_000), answer]
    fetch(origin, tmp_path / "a", time)
    assert_only(tmp_path / "a")
    assert origin.asked == [None, "bytes=100000-", None]


def test_a_body_that_ends_early_without_an_error(tmp_path: Path, time: TransferTime) -> None:
    origin = Origin()
    origin.faults = [ok(BODY[:5])]
    fetch(origin, tmp_path / "a", time)
    assert_only(tmp_path / "a")


FLIPPED = ok(bytes([BODY[0] ^ 1]), BODY[1:])


def shorter(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, headers={"Content-Length": str(len(BODY) - 1)}, stream=Body(BODY[1:]))


def test_wrong_bytes_are_fetched_once_more(tmp_path: Path, time: TransferTime) -> None:
    fetch(Origin(faults=[FLIPPED]), tmp_path / "a", time)
    assert_only(tmp_path / "a")


@pytest.mark.parametrize("wrong", [FLIPPED, shorter, ok(BODY, b"x")], ids=["flipped", "shorter", "longer"])
def test_bytes_that_stay_wrong_are_a_mismatch(tmp_path: Path, time: TransferTime, wrong: Answer) -> None:
    (tmp_path / "a").write_bytes(b"before")
    origin = Origin(faults=[wrong] * 9)
    with pytest.raises(BlobMismatch):
        fetch(origin, tmp_path / "a", time)
    assert len(origin.requests) == 2
    assert_only(tmp_path / "a", b"before")


def test_an_endless_body_does_not_fill_the_disk(tmp_path: Path, time: TransferTime) -> None:
    pulled: list[int] = []

    class Endless(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            for _ in range(1000):
                pulled.append(1)
                yield b"x" * 300_000

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=Endless())

    with pytest.raises(BlobMismatch, match="more than"):
        fetch(Origin(faults=[answer] * 2), tmp_path / "a", time)
    assert len(pulled) == 2 * 4


@pytest.mark.parametrize(("fault", "error"), [(status(404), BlobMissing), (status(403), Forbidden)])
def test_a_refusal_that_will_not_pass_ends_a_download(
    tmp_path: Path, time: TransferTime, fault: Answer, error: type[Exception]
) -> None:
    origin = Origin(faults=[fault])
    with pytest.raises(error):
        fetch(origin, tmp_path / "a", time)
    assert len(origin.requests) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_stays_down_is_unavailable(tmp_path: Path, time: TransferTime) -> None:
    with pytest.raises(Unavailable, match="503"):
        fetch(Origin(faults=[status(503)] * 9), tmp_path / "a", time)
    assert time.waits_s == [0.5, 1.0, 2.0]
    assert list(tmp_path.iterdir()) == []


def test_a_bucket_that_is_gone_does_not_make_an_object_missing(tmp_path: Path, time: TransferTime) -> None:
    with pytest.raises(Unavailable, match="NoSuchBucket"):
        fetch(Origin(faults=[status(404, "<Code>NoSuchBucket</Code>")] * 9), tmp_path / "a", time)
    fetch(Origin(faults=[status(404, "<Code>NoSuchBucket</Code>")]), tmp_path / "a", time)
    assert_only(tmp_path / "a")


def test_a_url_that_runs_out_on_the_way_is_renewed(tmp_path: Path, time: TransferTime) -> None:
    origin = Origin()
    origin.faults = [origin.breaking_off(100_000), status(403)]
    fresh = SIGNED.model_copy(update={"url": "https://storage.test/a?sig=2"})
    fetch(origin, tmp_path / "a", time, renew=lambda: fresh)
    assert_only(tmp_path / "a")
    assert [request.url.params["sig"] for request in origin.requests] == ["1", "1", "2"]
    assert origin.asked[-1] == "bytes=100000-"
