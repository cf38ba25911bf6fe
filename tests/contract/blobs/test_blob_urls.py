"""Signed URLs: good for one object, one method, one size, one hash, and a short time."""

import json
import os

import httpx
import pytest
from tests.contract.blobs.storage_under_test import StorageUnderTest, hex_of, now, send

from giornata.control.ports.blobs import SignedRequest
from giornata.domain.errors import BlobMissing, InvalidInput

BODY = os.urandom(100_000)
REFUSED = {400, 403, 404, 405, 409, 411, 413}


def sign(place: StorageUnderTest, key: str = "a/b.bin", body: bytes = BODY, expires_in_s: int = 60) -> SignedRequest:
    return place.blobs.sign_put(key, size_bytes=len(body), sha256=hex_of(body), expires_in_s=expires_in_s)


def assert_refused(place: StorageUnderTest, reply: httpx.Response, key: str = "a/b.bin") -> None:
    assert reply.status_code in REFUSED, reply.text
    with pytest.raises(BlobMissing):
        place.blobs.size(key)


def test_signed_put_then_signed_get_returns_same_bytes(place: StorageUnderTest, http: httpx.Client) -> None:
    put = send(http, sign(place), BODY)
    assert put.status_code == 200, put.text
    assert place.blobs.digest("a/b.bin").sha256 == hex_of(BODY)
    got = send(http, place.blobs.sign_get("a/b.bin", expires_in_s=60))
    assert (got.status_code, got.content) == (200, BODY)


def test_signed_put_of_empty_object_is_stored(place: StorageUnderTest, http: httpx.Client) -> None:
    assert send(http, sign(place, body=b""), b"").status_code == 200
    assert place.blobs.size("a/b.bin") == 0
    assert list(place.blobs.read("a/b.bin")) in ([], [b""])


def test_the_same_put_may_be_sent_twice(place: StorageUnderTest, http: httpx.Client) -> None:
    signed = sign(place)
    assert [send(http, signed, BODY).status_code for _ in range(2)] == [200, 200]


def test_a_range_of_an_object(place: StorageUnderTest, http: httpx.Client) -> None:
    place.blobs.write("a", [BODY])
    signed = place.blobs.sign_get("a", expires_in_s=60)
    got = http.get(signed.url, headers={"Range": "bytes=99990-"})
    assert (got.status_code, got.content) == (206, BODY[99990:])
    assert got.headers["content-range"] == "bytes 99990-99999/100000"


def test_signed_url_has_expires_at_of_requested_lifetime(place: StorageUnderTest) -> None:
    before = now()
    for signed in (sign(place, expires_in_s=60), place.blobs.sign_get("a", expires_in_s=60)):
        assert 58 <= (signed.expires_at - before).total_seconds() <= 62
        assert signed.expires_at.tzinfo is not None


@pytest.mark.parametrize("body", [BODY + b"x", BODY[:-1], b""], ids=["longer", "shorter", "empty"])
def test_signed_put_of_wrong_size_is_refused(place: StorageUnderTest, http: httpx.Client, body: bytes) -> None:
    assert_refused(place, send(http, sign(place), body))


def test_a_longer_body_without_a_length_is_refused(place: StorageUnderTest, http: httpx.Client) -> None:
    signed = sign(place)
    headers = {name: value for name, value in signed.headers.items() if name != "Content-Length"}
    assert_refused(place, http.put(signed.url, headers=headers, content=iter([BODY, b"x"])))


def test_bytes_that_do_not_hash_are_refused(place: StorageUnderTest, http: httpx.Client) -> None:
    assert_refused(place, send(http, sign(place), b"X" + BODY[1:]))


def test_a_refused_put_leaves_what_was_there(place: StorageUnderTest, http: httpx.Client) -> None:
    place.blobs.write("a/b.bin", [b"before"])
    send(http, sign(place), b"X" + BODY[1:])
    assert b"".join(place.blobs.read("a/b.bin")) == b"before"


def test_an_expired_url_is_refused(place: StorageUnderTest, http: httpx.Client) -> None:
    place.blobs.write("there", [b"x"])
    put, get = sign(place, expires_in_s=1), place.blobs.sign_get("there", expires_in_s=1)
    upload = place.blobs.begin_multipart("parts")
    part = place.blobs.sign_part("parts", upload, 1, len(BODY), 1)
    place.let_expire()
    assert send(http, get).status_code == 403
    assert send(http, part, BODY).status_code == 403
    assert_refused(place, send(http, put, BODY))


def test_a_url_is_good_for_one_object_only(place: StorageUnderTest, http: httpx.Client) -> None:
    place.blobs.write("a/other.bin", [b"other"])
    put, get = sign(place), place.blobs.sign_get("a/b.bin", expires_in_s=60)
    for signed in (put, get):
        other = signed.url.replace("/a/b.bin", "/a/other.bin")
        assert send(http, signed, BODY, url=other).status_code == 403
    assert b"".join(place.blobs.read("a/other.bin")) == b"other"


@pytest.mark.parametrize("method", ["GET", "DELETE", "HEAD", "POST"])
def test_a_put_url_is_good_for_no_other_method(place: StorageUnderTest, http: httpx.Client, method: str) -> None:
    signed = sign(place)
    assert send(http, signed, BODY).status_code == 200
    assert send(http, signed, method=method).status_code in REFUSED
    assert place.blobs.size("a/b.bin") == len(BODY)


@pytest.mark.parametrize("method", ["PUT", "DELETE", "HEAD", "POST"])
def test_a_get_url_is_good_for_no_other_method(place: StorageUnderTest, http: httpx.Client, method: str) -> None:
    place.blobs.write("a", [b"before"])
    assert send(http, place.blobs.sign_get("a", expires_in_s=60), method=method).status_code in REFUSED
    assert b"".join(place.blobs.read("a")) == b"before"


def test_a_url_for_a_part_is_good_for_no_whole_object(place: StorageUnderTest, http: httpx.Client) -> None:
    upload = place.blobs.begin_multipart("a/b.bin")
    signed = place.blobs.sign_part("a/b.bin", upload, 1, len(BODY), 60)
    bare, _, query = signed.url.partition("?")
    kept = [pair for pair in query.split("&") if not pair.lower().startswith(("part", "upload"))]
    assert_refused(place, send(http, signed, BODY, url=f"{bare}?{'&'.join(kept)}"))


def test_unsigned_requests_are_refused(place: StorageUnderTest, http: httpx.Client) -> None:
    place.blobs.write("there", [b"x"])
    assert http.get(place.unsigned_url("there")).status_code == 403
    assert_refused(place, http.put(place.unsigned_url("a/b.bin"), content=BODY))


def test_every_parameter_of_a_url_is_signed(place: StorageUnderTest, http: httpx.Client) -> None:
    place.blobs.write("a", [BODY])
    get = place.blobs.sign_get("a", expires_in_s=60, filename="a.bin", media_type="image/png")
    assert send(http, get).status_code == 200
    for signed in (get, sign(place)):
        bare, _, query = signed.url.partition("?")
        pairs = query.split("&")
        assert len(pairs) >= 4
        for number, pair in enumerate(pairs):
            changed = [*pairs[:number], _tampered(pair), *pairs[number + 1 :]]
            left_out = [*pairs[:number], *pairs[number + 1 :]]
            for altered in (changed, left_out):
                reply = send(http, signed, BODY, url=f"{bare}?{'&'.join(altered)}")
                assert reply.status_code in REFUSED, pair


def _tampered(pair: str) -> str:
    """Another value of the same length and kind."""
    last = pair[-1]
    return pair[:-1] + (str((int(last) + 1) % 10) if last.isdigit() else chr(ord(last) ^ 1))


def test_a_file_name_reaches_the_browser_whole(place: StorageUnderTest, http: httpx.Client) -> None:
    place.blobs.write("a", [b"x"])
    name = 'Käthe\'s "best"\\; \r\nSet-Cookie: x=1/ñ 画.safetensors'
    signed = place.blobs.sign_get("a", expires_in_s=60, filename=name, media_type="image/png")
    got = send(http, signed)
    assert got.status_code == 200, got.text
    assert got.headers["content-type"] == "image/png"
    assert "set-cookie" not in got.headers
    value = got.headers["content-disposition"]
    assert value.startswith('attachment; filename="K_the\'s _best__; __Set-Cookie: x=1__ _.safetensors"; filename*=')
    assert httpx.URL("http://h/?n=" + value.partition("UTF-8''")[2]).params["n"] == name


def test_signed_get_without_file_name_sends_octet_stream(place: StorageUnderTest, http: httpx.Client) -> None:
    place.blobs.write("page.html", [b"<script>alert(1)</script>"])
    got = send(http, place.blobs.sign_get("page.html", expires_in_s=60))
    assert got.headers["content-type"] == "application/octet-stream"
    assert "content-disposition" not in got.headers


def test_getting_what_is_not_there(place: StorageUnderTest, http: httpx.Client) -> None:
    assert send(http, place.blobs.sign_get("nothing", expires_in_s=60)).status_code == 404


@pytest.mark.parametrize(
    "key", ["", "/etc/passwd", "../up", "a/../b", "a//b", "a/", ".", "a/.", "a b", "a\n", "ä", "a%2e", "x" * 513]
)
def test_a_key_that_is_not_safe_is_refused_everywhere(place: StorageUnderTest, key: str) -> None:
    blobs = place.blobs
    for use in (
        lambda: blobs.sign_put(key, size_bytes=1, sha256="0" * 64, expires_in_s=1),
        lambda: blobs.sign_get(key, expires_in_s=1),
        lambda: blobs.sign_part(key, "u", 1, 1, 1),
        lambda: blobs.begin_multipart(key),
        lambda: blobs.complete_multipart(key, "u", ["e"]),
        lambda: blobs.abort_multipart(key, "u"),
        lambda: blobs.write(key, [b""]),
        lambda: next(blobs.read(key)),
        lambda: blobs.digest(key),
        lambda: blobs.size(key),
        lambda: blobs.delete(key),
    ):
        with pytest.raises(InvalidInput) as refused:
            use()
        assert [fault.where for fault in refused.value.faults] == ["key"]


def test_a_signed_request_can_be_written_down(place: StorageUnderTest) -> None:
    signed = sign(place)
    assert json.loads(json.dumps(signed.headers)) == signed.headers
    assert signed.headers["Content-Length"] == str(len(BODY))
