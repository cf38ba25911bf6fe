"""What only the folder has to prove: it serves its own URLs, and disks fill up."""

import os
import resource
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
from tests.contract.blobs.storage_under_test import hex_of

from giornata.blobs.filesystem import FilesystemBlobs
from giornata.control.ports.blobs import BlobRequest, SignedRequest
from giornata.domain.errors import BlobMismatch, BlobMissing, Forbidden, InvalidInput, TooLarge, Unavailable

START_MS = 1_800_000_000_000
SIGNING_KEY = b"k" * 32


@dataclass
class FixedClock:
    now: int = START_MS

    def now_ms(self) -> int:
        return self.now


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock()


def opened(root: Path, clock: FixedClock, base_url: str | Callable[[], str] = "http://h:1") -> FilesystemBlobs:
    return FilesystemBlobs(root, signing_key=SIGNING_KEY, base_url=base_url, clock=clock)


@pytest.fixture
def blobs(tmp_path: Path, clock: FixedClock) -> FilesystemBlobs:
    return opened(tmp_path, clock)


def received(signed: SignedRequest, *, length: int | None = None, method: str | None = None) -> BlobRequest:
    url = urlsplit(signed.url)
    return BlobRequest(
        method=method or signed.method,
        key=unquote(url.path.removeprefix("/v1/blobs/")),
        query=dict(parse_qsl(url.query)),
        content_length=length,
    )


def files_below(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def endless() -> Iterator[bytes]:
    while True:
        yield b"x" * 1000


def never() -> Iterator[bytes]:
    raise AssertionError("the body was read")
    yield b""


def test_an_endless_body_is_refused_at_the_first_byte_too_many(blobs: FilesystemBlobs, tmp_path: Path) -> None:
    put = blobs.sign_put("a", size_bytes=2500, sha256="0" * 64, expires_in_s=60)
    with pytest.raises(TooLarge):
        blobs.accept_put(received(put), endless())
    part = blobs.sign_part("a", blobs.begin_multipart("a"), 1, 2500, 60)
    with pytest.raises(TooLarge):
        blobs.accept_part(received(part), endless())
    assert [name for name in files_below(tmp_path) if not name.endswith("/key")] == []


def test_a_body_that_admits_its_length_is_refused_unread(blobs: FilesystemBlobs) -> None:
    put = blobs.sign_put("a", size_bytes=10, sha256=hex_of(b"x" * 10), expires_in_s=60)
    with pytest.raises(TooLarge):
        blobs.accept_put(received(put, length=11), never())
    with pytest.raises(BlobMismatch):
        blobs.accept_put(received(put, length=9), never())


def test_a_body_that_ends_early_is_told_from_wrong_bytes(blobs: FilesystemBlobs) -> None:
    put = received(blobs.sign_put("a", size_bytes=2, sha256=hex_of(b"xx"), expires_in_s=60))
    for body, said in ((b"x", "1 bytes came"), (b"xy", "hash to")):
        with pytest.raises(BlobMismatch, match=said):
            blobs.accept_put(put, iter([body]))


def test_file_is_read_with_a_good_signature_only(blobs: FilesystemBlobs, clock: FixedClock) -> None:
    put = received(blobs.sign_put("a", size_bytes=1, sha256=hex_of(b"x"), expires_in_s=60))
    part = received(blobs.sign_part("a", blobs.begin_multipart("a"), 1, 1, 60))
    for accept, request in ((blobs.accept_put, part), (blobs.accept_part, put)):
        with pytest.raises(Forbidden, match="another kind"):
            accept(request, never())
    clock.now += 60_000
    with pytest.raises(Forbidden, match="expired"):
        blobs.accept_put(put, never())
    with pytest.raises(Forbidden, match="signature"):
        blobs.accept_put(BlobRequest(method="PUT", key="a", query={}), never())
    with pytest.raises(Forbidden, match="signature"):
        blobs.open_get(BlobRequest(method="GET", key="a\ud800", query={"signature": "\ud800"}))


def test_a_url_of_another_installation_is_refused(blobs: FilesystemBlobs, tmp_path: Path, clock: FixedClock) -> None:
    other = FilesystemBlobs(tmp_path, signing_key=b"o" * 32, base_url="http://h:1", clock=clock)
    with pytest.raises(Forbidden):
        blobs.open_get(received(other.sign_get("a", expires_in_s=60)))


def test_urls_outlive_a_restart_on_another_port(tmp_path: Path, clock: FixedClock) -> None:
    port = ["1"]
    before = opened(tmp_path, clock, lambda: f"http://h:{port[0]}/")
    signed = before.sign_put("a", size_bytes=1, sha256=hex_of(b"x"), expires_in_s=60)
    port[0] = "2"
    assert signed.url.startswith("http://h:1/v1/blobs/a?")
    assert before.sign_get("a", expires_in_s=60).url.startswith("http://h:2/v1/blobs/a?")
    opened(tmp_path, clock, "http://h:2").accept_put(received(signed), iter([b"x"]))
    assert before.size("a") == 1


def test_a_short_signing_key_is_refused(tmp_path: Path, clock: FixedClock) -> None:
    with pytest.raises(InvalidInput, match="signing_key"):
        FilesystemBlobs(tmp_path, signing_key=b"short", base_url="http://h", clock=clock)


def test_a_full_disk_leaves_nothing_behind(blobs: FilesystemBlobs, tmp_path: Path) -> None:
    blobs.write("a", [b"before"])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
    try:
        with pytest.raises(Unavailable, match="no room"):
            blobs.write("a", (b"x" * 2**18 for _ in range(8)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert files_below(tmp_path) == ["objects/a"]
    assert blobs.size("a") == 6


def test_half_an_object_is_never_visible(blobs: FilesystemBlobs) -> None:
    seen: list[bool] = []

    def chunks() -> Iterator[bytes]:
        for _ in range(3):
            yield b"x"
            seen.append([*blobs.list("")] == [])

    blobs.write("a", chunks())
    assert seen == [True] * 3


def test_leftover_files_of_interrupted_writes_are_swept_after_a_day(
    blobs: FilesystemBlobs, tmp_path: Path, clock: FixedClock
) -> None:
    (tmp_path / "aside" / "old").write_bytes(b"half")
    (tmp_path / "aside" / "old-folder").mkdir()
    (tmp_path / "aside" / "new").write_bytes(b"half")
    for name in ("old", "old-folder"):
        os.utime(tmp_path / "aside" / name, times=(START_MS / 1000 - 90_000,) * 2)
    os.utime(tmp_path / "aside" / "new", times=(START_MS / 1000 - 80_000,) * 2)
    opened(tmp_path, clock)
    assert [path.name for path in (tmp_path / "aside").iterdir()] == ["new"]


def test_an_upload_is_for_one_key(blobs: FilesystemBlobs) -> None:
    upload = blobs.begin_multipart("mine")
    with pytest.raises(BlobMissing):
        blobs.accept_part(received(blobs.sign_part("yours", upload, 1, 1, 60)), iter([b"x"]))
    blobs.abort_multipart("yours", upload)
    etag = blobs.accept_part(received(blobs.sign_part("mine", upload, 1, 1, 60)), iter([b"x"]))
    with pytest.raises(BlobMissing):
        blobs.complete_multipart("yours", upload, [etag])
    blobs.complete_multipart("mine", upload, [f'"{etag}"'])
    assert blobs.size("mine") == 1


def test_an_upload_that_leads_elsewhere_is_unknown(blobs: FilesystemBlobs) -> None:
    for upload in ("", ".", "../objects", "/etc", "x" * 300):
        with pytest.raises(BlobMissing):
            blobs.complete_multipart("a", upload, ["0" * 64 + "-1"])


def test_an_upload_that_was_never_finished_being_begun_is_cleared(blobs: FilesystemBlobs, tmp_path: Path) -> None:
    folder = tmp_path / "uploads" / f"{START_MS:013d}-{'0' * 32}"
    folder.mkdir()
    soon = blobs.sign_get("a", expires_in_s=60).expires_at
    assert list(blobs.stale_multiparts(soon)) == []
    assert not folder.exists()


def test_a_key_may_not_be_another_keys_folder(blobs: FilesystemBlobs) -> None:
    blobs.write("a/b", [b"x"])
    for key in ("a", "a/b/c"):
        with pytest.raises(InvalidInput, match="another key's folder"):
            blobs.write(key, [b"x"])
    assert [row.key for row in blobs.list("")] == ["a/b"]


def test_a_disk_that_is_not_mounted_has_lost_nothing(blobs: FilesystemBlobs, tmp_path: Path) -> None:
    """Else every checkpoint would be given up while somebody looks for the cable."""
    blobs.write("a/b", [b"x"])
    (tmp_path / "objects").rename(tmp_path / "elsewhere")
    for ask in (blobs.digest, blobs.size, lambda key: list(blobs.read(key))):
        with pytest.raises(Unavailable, match="storage is away"):
            ask("a/b")
    (tmp_path / "elsewhere").rename(tmp_path / "objects")
    (tmp_path / "objects" / "a" / "b").unlink()
    with pytest.raises(BlobMissing):
        blobs.digest("a/b")


def test_writing_beside_deleting_loses_nothing(blobs: FilesystemBlobs) -> None:
    failed: list[Exception] = []

    def churn(name: str) -> None:
        try:
            for _ in range(60):
                blobs.write(f"deep/er/{name}", [b"x"])
                assert blobs.delete(f"deep/er/{name}")
        except Exception as error:  # noqa: BLE001
            failed.append(error)

    threads = [threading.Thread(target=churn, args=(str(number),)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
