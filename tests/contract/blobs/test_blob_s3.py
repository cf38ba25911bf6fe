"""What only S3 has to prove: whose word is taken for a hash, and what a server that fails is called."""

import io
import secrets
import socket
from hashlib import sha256
from urllib.parse import parse_qs, urlsplit

import pytest
from botocore.response import StreamingBody
from botocore.stub import Stubber
from tests.contract.blobs.storage_under_test import ShiftedClock
from tests.fixtures.seaweed import Seaweed

from giornata.blobs.s3 import S3Blobs, S3Credentials, S3Place, s3_client
from giornata.control.ports.blobs import Stored
from giornata.domain.errors import InvalidInput, Unavailable


def opened(seaweed: Seaweed, client: object, **options: bool) -> S3Blobs:
    place = seaweed.place(f"test-{secrets.token_hex(8)}", **options)
    return S3Blobs(place, client, clock=ShiftedClock())  # type: ignore[arg-type]


@pytest.mark.parametrize("size_bytes", [11, 17 * 2**20], ids=["one put", "multipart"])
@pytest.mark.parametrize("believed", [True, False])
def test_a_digest_is_right_whether_or_not_the_server_is_believed(
    seaweed: Seaweed, seaweed_client: object, believed: bool, size_bytes: int
) -> None:
    blobs = opened(seaweed, seaweed_client, verifies_checksums=believed)
    body = secrets.token_bytes(size_bytes)
    blobs.write("a", [body])
    assert blobs.digest("a") == Stored(size_bytes=size_bytes, sha256=sha256(body).hexdigest())


def test_a_believed_digest_reads_no_bytes(seaweed: Seaweed, seaweed_client) -> None:
    reads: list[str] = []
    client = s3_client(seaweed.place(), seaweed.credentials)
    client.meta.events.register("before-call.s3.GetObject", lambda **_: reads.append("read"))
    for believed, expected in ((True, []), (False, ["read"])):
        blobs = opened(seaweed, client, verifies_checksums=believed)
        blobs.write("a", [b"x"])
        blobs.digest("a")
        assert reads == expected


def test_a_checksum_of_checksums_is_never_believed() -> None:
    place = S3Place(bucket="bucket", verifies_checksums=True)
    client = s3_client(place, S3Credentials(access_key_id="a", secret_access_key="b"))
    at = {"Bucket": "bucket", "Key": "a"}
    for composite in ({"ChecksumSHA256": "AAAA-2"}, {"ChecksumSHA256": "AAAA", "ChecksumType": "COMPOSITE"}):
        with Stubber(client) as stub:
            stub.add_response("head_object", {"ContentLength": 1, **composite}, {**at, "ChecksumMode": "ENABLED"})
            stub.add_response("get_object", {"Body": StreamingBody(io.BytesIO(b"x"), 1)}, at)
            digest = S3Blobs(place, client, clock=ShiftedClock()).digest("a")
        assert digest == Stored(size_bytes=1, sha256=sha256(b"x").hexdigest())


def test_size_and_hash_are_signed(seaweed: Seaweed, seaweed_client: object) -> None:
    blobs = opened(seaweed, seaweed_client)
    put = blobs.sign_put("a", size_bytes=1, sha256="0" * 64, expires_in_s=60)
    part = blobs.sign_part("a", "upload", 1, 1, 60)
    for signed in (put, part):
        names = set(parse_qs(urlsplit(signed.url).query)["X-Amz-SignedHeaders"][0].split(";"))
        assert names == {"host", *map(str.lower, signed.headers)}
        assert "content-length" in names
    assert "x-amz-checksum-sha256" in put.headers


def test_a_prefix_is_a_wall(seaweed: Seaweed, seaweed_client: object) -> None:
    one, two = (opened(seaweed, seaweed_client) for _ in range(2))
    one.write("a", [b"1"])
    assert (len([*one.list("")]), len([*two.list("")])) == (1, 0)
    assert two.delete("a") is False
    with pytest.raises(InvalidInput):
        S3Blobs(seaweed.place("../up"), seaweed_client, clock=ShiftedClock())  # type: ignore[arg-type]


def test_a_server_that_is_not_there_is_unavailable() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        place = S3Place(bucket="bucket", endpoint_url="http://{}:{}".format(*closed.getsockname()))
        client = s3_client(place, S3Credentials(access_key_id="a", secret_access_key="b"))
        blobs = S3Blobs(place, client, clock=ShiftedClock())
        for use in (lambda: blobs.size("a"), lambda: next(blobs.read("a")), lambda: [*blobs.list("")]):
            with pytest.raises(Unavailable, match="cannot be reached"):
                use()


def test_wrong_credentials_and_a_wrong_bucket_are_said_to_be_so(seaweed: Seaweed) -> None:
    stranger = S3Credentials(access_key_id=seaweed.credentials.access_key_id, secret_access_key="wrong")
    refused = S3Blobs(seaweed.place(), s3_client(seaweed.place(), stranger), clock=ShiftedClock())
    nowhere = S3Place(bucket="no-such-bucket", endpoint_url=seaweed.endpoint_url)
    lost = S3Blobs(nowhere, s3_client(nowhere, seaweed.credentials), clock=ShiftedClock())
    for blobs in (refused, lost):
        for use in (lambda: next(blobs.read("a")), lambda: blobs.begin_multipart("a")):  # noqa: B023
            with pytest.raises(Unavailable, match="credentials"):
                use()
