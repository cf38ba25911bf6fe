"""Files on their way to storage, over a network that does what networks do."""

import os
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import sha256
from pathlib import Path

import httpx
import pytest
from tests.unit.client.transfer_time import Answer, TransferTime, status

from giornata.client.storage.transfer import CHUNK_BYTES, upload_file
from giornata.domain.errors import BlobMismatch, BlobMissing, Forbidden, TooLarge, Unavailable
from giornata.protocol.uploads import SignedPart, SignedUrl, UploadTicket

BODY = os.urandom(1_000_000)
PART_BYTES = 300_000
SHA256 = sha256(BODY).hexdigest()


@dataclass
class PartStorage:
    """Takes parts under URLs that carry their own end; `faults` come first, one a request."""

    time: TransferTime
    life_s: float = 900
    takes_s: float = 0
    faults: list[Answer] = field(default_factory=list)
    parts: dict[str, bytes] = field(default_factory=dict)
    requests: list[httpx.Request] = field(default_factory=list)
    renewed: list[list[int]] = field(default_factory=list)

    def sign(self, number: int) -> SignedUrl:
        ends_at = self.time.now + timedelta(seconds=self.life_s)
        url = f"https://storage.test/a?part={number}&ends={ends_at.timestamp()}"
        return SignedUrl(method="PUT", url=url, headers={"x-signed": "yes"}, expires_at=ends_at)

    def ticket(self, *, body: bytes = BODY) -> UploadTicket:
        sizes = [min(PART_BYTES, len(body) - at) for at in range(0, len(body), PART_BYTES)]
        parts = [
            SignedPart(number=number, size_bytes=size, request=self.sign(number))
            for number, size in enumerate(sizes, start=1)
        ]
        return UploadTicket(sha256=sha256(body).hexdigest(), exists=False, upload_id="u", parts=tuple(parts))

    def renew(self, numbers: list[int]) -> list[SignedPart]:
        self.renewed.append(numbers)
        return [SignedPart(number=n, size_bytes=PART_BYTES, request=self.sign(n)) for n in numbers or [1]]

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if self.faults:
            return self.faults.pop(0)(request)
        if float(request.url.params["ends"]) <= self.time.now.timestamp():
            return httpx.Response(403, text="<Code>AccessDenied</Code><Message>Request has expired</Message>")
        body = request.read()
        self.time.now += timedelta(seconds=self.takes_s)
        assert int(request.headers["content-length"]) == len(body)
        number = request.url.params["part"]
        self.parts[number] = body
        return httpx.Response(200, headers={"ETag": f'"etag-{number}"'})

    def client(self) -> httpx.Client:
        return httpx.Client(transport=httpx.MockTransport(self))

    @property
    def stored(self) -> bytes:
        return b"".join(self.parts[number] for number in sorted(self.parts, key=int))


def cut(request: httpx.Request) -> httpx.Response:
    raise httpx.WriteError("connection reset by peer", request=request)


@pytest.fixture
def time() -> TransferTime:
    return TransferTime()


@pytest.fixture
def storage(time: TransferTime) -> PartStorage:
    return PartStorage(time)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "picture.png"
    path.write_bytes(BODY)
    return path


def upload(storage: PartStorage, path: Path, ticket: UploadTicket | None = None, **options: object) -> list[str]:
    ticket = ticket or storage.ticket()
    with storage.client() as http:
        return upload_file(
            http,
            path,
            ticket,
            renew=storage.renew,
            **storage.time.options(),
            **options,
        )  # type: ignore[arg-type]


def test_parts_arrive_in_order(storage: PartStorage, path: Path) -> None:
    assert upload(storage, path) == ["etag-1", "etag-2", "etag-3", "etag-4"]
    assert storage.stored == BODY
    assert storage.renewed == storage.time.waits_s == []


def test_single_put_upload_stores_body_and_returns_etag(storage: PartStorage, path: Path) -> None:
    ticket = UploadTicket(sha256=SHA256, exists=False, upload_id="u", put=storage.sign(1))
    assert upload(storage, path, ticket) == ["etag-1"]
    assert storage.stored == BODY


def test_bytes_that_are_there_already_are_not_sent(storage: PartStorage, path: Path) -> None:
    assert upload(storage, path, UploadTicket(sha256=SHA256, exists=True)) == []
    assert storage.requests == []


class ReadingTransport(httpx.BaseTransport):
    """Takes a body as it comes, and notes the sizes of its pieces."""

    def __init__(self) -> None:
        self.headers, self.sizes = httpx.Headers(), list[int]()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.headers = request.headers
        assert isinstance(request.stream, httpx.SyncByteStream)
        self.sizes = [len(chunk) for chunk in request.stream]
        return httpx.Response(200)


def test_the_file_is_streamed_with_its_length(storage: PartStorage, path: Path) -> None:
    ticket, transport = UploadTicket(sha256=SHA256, exists=False, put=storage.sign(1)), ReadingTransport()
    with httpx.Client(transport=transport) as http:
        assert upload_file(http, path, ticket, renew=storage.renew, **storage.time.options()) == []
    assert transport.headers["content-length"] == str(len(BODY))
    assert "transfer-encoding" not in transport.headers
    assert sum(transport.sizes) == len(BODY)
    assert max(transport.sizes) <= CHUNK_BYTES


def test_credentials_of_the_client_do_not_go_to_storage(storage: PartStorage, path: Path) -> None:
    with httpx.Client(
        transport=httpx.MockTransport(storage),
        headers={"Authorization": "Bearer key", "X-Own": "1"},
        auth=("user", "secret"),
        cookies={"session": "s"},
        params={"also": "this"},
    ) as http:
        upload_file(
            http,
            path,
            storage.ticket(),
            renew=storage.renew,
            **storage.time.options(),
        )
    for request in storage.requests:
        assert not {"authorization", "cookie", "x-own"} & set(request.headers)
        assert request.headers["x-signed"] == "yes"
        assert "also" not in request.url.params
        assert request.extensions["timeout"]["read"] > 0


NO_BUCKET = status(404, "<Error><Code>NoSuchBucket</Code></Error>")


@pytest.mark.parametrize(
    "fault", [status(500), status(503), status(429), status(400, "RequestTimeout"), NO_BUCKET, cut]
)
def test_a_fault_that_passes_costs_a_wait_and_one_part(storage: PartStorage, path: Path, fault: Answer) -> None:
    storage.faults = [fault]
    assert len(upload(storage, path)) == 4
    assert storage.stored == BODY
    assert (storage.time.waits_s, len(storage.requests)) == ([0.5], 5)


def test_waits_double_and_end_with_unavailable(storage: PartStorage, path: Path) -> None:
    storage.faults = [status(500)] * 10
    with pytest.raises(Unavailable, match="500"):
        upload(storage, path)
    assert storage.time.waits_s == [0.5, 1.0, 2.0]


def test_a_connection_that_stays_lost_is_unavailable(storage: PartStorage, path: Path) -> None:
    storage.faults = [cut] * 10
    with pytest.raises(Unavailable, match="reset by peer"):
        upload(storage, path)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (status(404, "<Code>NoSuchUpload</Code>"), BlobMissing),
        (status(409, '{"code": "blob-missing"}'), BlobMissing),
        (status(409, '{"code": "blob-mismatch"}'), BlobMismatch),
        (status(400, "<Code>BadDigest</Code>"), BlobMismatch),
        (status(413), TooLarge),
        (status(302), Unavailable),
    ],
)
def test_a_refusal_that_will_not_pass_is_told_at_once(
    storage: PartStorage, path: Path, answer: Answer, error: type[Exception]
) -> None:
    storage.faults = [answer]
    with pytest.raises(error):
        upload(storage, path)
    assert len(storage.requests) == 1


def test_an_uplink_slower_than_the_life_of_a_url(storage: PartStorage, path: Path) -> None:
    storage.life_s, storage.takes_s = 60, 50
    assert len(upload(storage, path)) == 4
    assert storage.stored == BODY
    assert [request for request in storage.requests if "ends" not in request.url.params] == []
    assert len(storage.requests) == 4, "a body was sent to a URL that had run out"
    assert storage.renewed == [[3, 4]]


def test_an_expiry_that_only_storage_sees_is_renewed(storage: PartStorage, path: Path) -> None:
    ticket = storage.ticket()
    behind = timedelta(hours=1)
    storage.time.now += behind
    with storage.client() as http:
        upload_file(
            http,
            path,
            ticket,
            renew=storage.renew,
            **storage.time.options(ahead=-behind),
        )
    assert storage.stored == BODY
    assert storage.renewed == [[1, 2, 3, 4]]


def test_a_clock_that_is_ahead_does_not_ask_for_urls_for_ever(storage: PartStorage, path: Path) -> None:
    with storage.client() as http:
        upload_file(
            http,
            path,
            storage.ticket(),
            renew=storage.renew,
            **storage.time.options(ahead=timedelta(days=1)),
        )
    assert storage.stored == BODY
    assert storage.renewed == [[1, 2, 3, 4]]


def test_a_single_put_is_renewed_with_no_numbers(storage: PartStorage, path: Path) -> None:
    ticket = UploadTicket(sha256=SHA256, exists=False, upload_id="u", put=storage.sign(1))
    storage.faults = [status(403)]
    assert upload(storage, path, ticket) == ["etag-1"]
    assert storage.renewed == [[]]


def test_fresh_urls_that_are_refused_too_are_forbidden(storage: PartStorage, path: Path) -> None:
    storage.faults = [status(403, "SignatureDoesNotMatch")] * 10
    with pytest.raises(Forbidden, match="SignatureDoesNotMatch"):
        upload(storage, path)
    assert len(storage.requests) == 4


def test_a_server_that_gives_no_fresh_url(storage: PartStorage, path: Path) -> None:
    storage.faults = [status(403)]
    with storage.client() as http, pytest.raises(Unavailable, match="part 1"):
        upload_file(
            http,
            path,
            storage.ticket(),
            renew=lambda _: [],
            **storage.time.options(),
        )


def test_a_part_without_an_etag_is_no_success(storage: PartStorage, path: Path) -> None:
    storage.faults = [status(200)]
    with pytest.raises(Unavailable, match="ETag"):
        upload(storage, path)


def test_a_file_of_another_size_is_not_sent(storage: PartStorage, path: Path) -> None:
    path.write_bytes(BODY + b"x")
    with pytest.raises(BlobMismatch, match=r"picture\.png"):
        upload(storage, path)
    assert storage.requests == []


def test_a_file_that_shrinks_on_the_way(storage: PartStorage, path: Path) -> None:
    def shrink(request: httpx.Request) -> httpx.Response:
        path.write_bytes(BODY[:1000])
        request.read()
        return httpx.Response(200, headers={"ETag": "x"})

    storage.faults = [shrink]
    with pytest.raises(BlobMismatch, match="shorter"):
        upload(storage, path)


def test_progress_counts_bytes_of_the_file(storage: PartStorage, path: Path) -> None:
    seen: list[int] = []
    upload(storage, path, progress=seen.append)
    assert seen == sorted(seen)
    assert {PART_BYTES, 2 * PART_BYTES, 3 * PART_BYTES} < set(seen)
    assert seen[-1] == len(BODY)


def test_progress_steps_back_when_a_part_is_sent_again(storage: PartStorage, path: Path) -> None:
    seen: list[int] = []
    storage.faults = [cut]
    upload(storage, path, progress=seen.append)
    assert seen[:4] == [CHUNK_BYTES, PART_BYTES, CHUNK_BYTES, PART_BYTES]
