"""Objects, by the server's own hand."""

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
from tests.contract.blobs.storage_under_test import StorageUnderTest, hex_of, now

from giornata.domain.errors import BlobMissing, InvalidInput


def test_blob_written_is_read_back_with_size_and_sha256(place: StorageUnderTest) -> None:
    stored = place.blobs.write("a/b", [b"one ", b"", b"two"])
    assert (stored.size_bytes, stored.sha256) == (7, hex_of(b"one two"))
    assert place.blobs.digest("a/b") == stored
    assert place.blobs.size("a/b") == 7
    assert b"".join(place.blobs.read("a/b")) == b"one two"


def test_a_large_object_is_read_in_pieces(place: StorageUnderTest) -> None:
    block = bytes(range(256)) * 4096
    stored = place.blobs.write("large", (block for _ in range(35)))
    assert stored.size_bytes == 35 * 2**20
    sizes = [len(chunk) for chunk in place.blobs.read("large")]
    assert sum(sizes) == stored.size_bytes
    assert max(sizes) <= 4 * 2**20
    assert place.blobs.digest("large") == stored


def test_writing_nothing_makes_an_empty_object(place: StorageUnderTest) -> None:
    assert place.blobs.write("none", []).sha256 == hex_of(b"")
    assert place.blobs.size("none") == 0


@pytest.mark.parametrize("before_it_fails", [1, 20 * 2**20], ids=["small", "in parts"])
def test_a_write_that_fails_leaves_what_was_there(place: StorageUnderTest, before_it_fails: int) -> None:
    class Unplugged(Exception):
        pass

    def chunks() -> Iterator[bytes]:
        yield b"x" * before_it_fails
        raise Unplugged

    with pytest.raises(Unplugged):
        place.blobs.write("new", chunks())
    place.blobs.write("old", [b"before"])
    with pytest.raises(Unplugged):
        place.blobs.write("old", chunks())
    assert [row.key for row in place.blobs.list("")] == ["old"]
    assert b"".join(place.blobs.read("old")) == b"before"
    assert list(place.blobs.stale_multiparts(now() + timedelta(minutes=1))) == []


def test_missing_key_raises_blob_missing_and_delete_returns_false(place: StorageUnderTest) -> None:
    place.blobs.write("folder/file", [b"x"])
    for key in ("nothing", "folder", "folder/file2"):
        for use in (place.blobs.size, place.blobs.digest, lambda key: next(place.blobs.read(key))):
            with pytest.raises(BlobMissing, match=key):
                use(key)
        assert place.blobs.delete(key) is False
    assert place.blobs.size("folder/file") == 1


def test_delete_repeated_returns_false(place: StorageUnderTest) -> None:
    place.blobs.write("a/b/c", [b"x"])
    assert [place.blobs.delete("a/b/c") for _ in range(2)] == [True, False]
    assert list(place.blobs.list("")) == []
    place.blobs.write("a/b", [b"a folder no more"])
    assert place.blobs.size("a/b") == 16


def test_a_listing_walks_all_pages(place: StorageUnderTest) -> None:
    keys = [f"{folder}/{number:02d}" for folder in ("a", "a.b", "ab", "b/c") for number in range(5)]
    for key in reversed(keys):
        place.blobs.write(key, [key.encode()])
    found = list(place.blobs.list(""))
    assert sorted(row.key for row in found) == sorted(keys)
    assert {row.size_bytes for row in found} == {4, 5, 6}
    assert all(abs((row.modified_at - now()).total_seconds()) < 120 for row in found)


def test_a_prefix_is_a_string_and_no_folder(place: StorageUnderTest) -> None:
    for key in ("a/1", "a/2", "ab/1", "b"):
        place.blobs.write(key, [b"x"])
    wanted = {"a": ["a/1", "a/2", "ab/1"], "a/": ["a/1", "a/2"], "a/2": ["a/2"], "c": [], "b": ["b"], "b/": []}
    assert {prefix: [row.key for row in place.blobs.list(prefix)] for prefix in wanted} == wanted


@pytest.mark.parametrize("prefix", ["/", "/a", "../", "a/../b", "a//", "ä"])
def test_a_prefix_that_is_not_safe(place: StorageUnderTest, prefix: str) -> None:
    with pytest.raises(InvalidInput):
        list(place.blobs.list(prefix))


def test_writers_of_one_key_leave_one_whole_object(place: StorageUnderTest) -> None:
    bodies = [bytes([number]) * 300_000 for number in range(8)]
    start = threading.Barrier(len(bodies))
    seen: list[bytes] = []

    def write(body: bytes) -> None:
        start.wait()
        for _ in range(3):
            place.blobs.write("shared", (body[at : at + 50_000] for at in range(0, len(body), 50_000)))
            seen.append(b"".join(place.blobs.read("shared")))

    threads = [threading.Thread(target=write, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 24
    assert set(seen) <= set(bodies)
    assert b"".join(place.blobs.read("shared")) in bodies
