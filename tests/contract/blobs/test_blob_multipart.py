"""Uploads in parts."""

import os
import re
from collections.abc import Sequence
from datetime import timedelta

import httpx
import pytest
from tests.contract.blobs.storage_under_test import StorageUnderTest, hex_of, now, send

from giornata.domain.errors import BlobMismatch, BlobMissing

PART_BYTES = 5 * 2**20  # S3 takes no smaller part, but for the last
PARTS = (os.urandom(PART_BYTES), os.urandom(PART_BYTES), os.urandom(1000))
KEY = "run/big.safetensors"


def put_part(place: StorageUnderTest, http: httpx.Client, upload: str, number: int, body: bytes) -> str:
    reply = send(http, place.blobs.sign_part(KEY, upload, number, len(body), 60), body)
    assert reply.status_code == 200, reply.text
    return reply.headers["etag"]


def put_all(place: StorageUnderTest, http: httpx.Client, upload: str, parts: Sequence[bytes] = PARTS) -> list[str]:
    return [put_part(place, http, upload, number, body) for number, body in enumerate(parts, start=1)]


def assert_whole(place: StorageUnderTest) -> None:
    stored = place.blobs.digest(KEY)
    assert (stored.size_bytes, stored.sha256) == (2 * PART_BYTES + 1000, hex_of(b"".join(PARTS)))


def test_parts_in_any_order_and_one_of_them_again(place: StorageUnderTest, http: httpx.Client) -> None:
    upload = place.blobs.begin_multipart(KEY)
    third = put_part(place, http, upload, 3, PARTS[2])
    put_part(place, http, upload, 1, os.urandom(PART_BYTES))
    first = put_part(place, http, upload, 1, PARTS[0])
    second = put_part(place, http, upload, 2, PARTS[1])
    with pytest.raises(BlobMissing):
        place.blobs.size(KEY)
    place.blobs.complete_multipart(KEY, upload, [first, second, third])
    assert_whole(place)


def test_completing_again_after_a_lost_reply(place: StorageUnderTest, http: httpx.Client) -> None:
    upload = place.blobs.begin_multipart(KEY)
    etags = put_all(place, http, upload)
    for _ in range(3):
        place.blobs.complete_multipart(KEY, upload, etags)
    assert_whole(place)


def test_completing_again_is_no_success_when_something_else_is_there(
    place: StorageUnderTest, http: httpx.Client
) -> None:
    upload = place.blobs.begin_multipart(KEY)
    etags = put_all(place, http, upload)
    place.blobs.abort_multipart(KEY, upload)
    place.blobs.write(KEY, [b"something else"])
    with pytest.raises(BlobMissing):
        place.blobs.complete_multipart(KEY, upload, etags)
    assert b"".join(place.blobs.read(KEY)) == b"something else"


def test_a_part_that_is_missing_or_another(place: StorageUnderTest, http: httpx.Client) -> None:
    upload = place.blobs.begin_multipart(KEY)
    etags = put_all(place, http, upload)
    for wrong in ([etags[1], etags[1], etags[2]], [*etags, etags[2]], ["nonsense", *etags[1:]], []):
        with pytest.raises(BlobMismatch):
            place.blobs.complete_multipart(KEY, upload, wrong)
    with pytest.raises(BlobMissing):
        place.blobs.size(KEY)
    place.blobs.complete_multipart(KEY, upload, etags)
    assert_whole(place)


@pytest.mark.parametrize("body", [b"x" * 1001, b"x" * 999], ids=["longer", "shorter"])
def test_a_part_of_another_size_is_refused(place: StorageUnderTest, http: httpx.Client, body: bytes) -> None:
    upload = place.blobs.begin_multipart(KEY)
    assert send(http, place.blobs.sign_part(KEY, upload, 1, 1000, 60), body).status_code in {403, 409, 413}


def test_a_url_is_good_for_one_part_only(place: StorageUnderTest, http: httpx.Client) -> None:
    upload = place.blobs.begin_multipart(KEY)
    signed = place.blobs.sign_part(KEY, upload, 1, 1000, 60)
    other = re.sub(r"\b(part|partNumber)=1\b", r"\1=2", signed.url)
    assert other != signed.url
    assert send(http, signed, PARTS[2], url=other).status_code == 403


def test_an_aborted_upload_takes_nothing_more(place: StorageUnderTest, http: httpx.Client) -> None:
    upload = place.blobs.begin_multipart(KEY)
    etag = put_part(place, http, upload, 1, PARTS[0])
    late = place.blobs.sign_part(KEY, upload, 2, 1000, 60)
    for _ in range(2):
        place.blobs.abort_multipart(KEY, upload)
    assert send(http, late, PARTS[2]).status_code == 404
    with pytest.raises(BlobMissing):
        place.blobs.complete_multipart(KEY, upload, [etag])
    place.blobs.abort_multipart(KEY, "0000000000000-" + "0" * 32)


def test_aborting_what_was_completed_harms_nothing(place: StorageUnderTest, http: httpx.Client) -> None:
    upload = place.blobs.begin_multipart(KEY)
    place.blobs.complete_multipart(KEY, upload, put_all(place, http, upload))
    place.blobs.abort_multipart(KEY, upload)
    assert_whole(place)


def test_leftovers_are_listed_on_all_pages(place: StorageUnderTest, http: httpx.Client) -> None:
    begun = {(f"left/{number}", place.blobs.begin_multipart(f"left/{number}")) for number in range(17)}
    done = place.blobs.begin_multipart(KEY)
    place.blobs.complete_multipart(KEY, done, put_all(place, http, done, PARTS[2:]))
    soon, long_ago = now() + timedelta(minutes=1), now() - timedelta(minutes=1)
    found = list(place.blobs.stale_multiparts(soon))
    assert len(found) == 17
    assert {(key, upload) for key, upload, _ in found} == begun
    assert all(long_ago < started_at < soon for _, _, started_at in found)
    assert list(place.blobs.stale_multiparts(long_ago)) == []
    for key, upload, _ in found:
        place.blobs.abort_multipart(key, upload)
    assert list(place.blobs.stale_multiparts(soon)) == []
