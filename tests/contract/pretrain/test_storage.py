"""Folders and S3 behave alike."""

import pickle
import secrets
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.fixtures.seaweed import Seaweed

from giornata.domain.errors import InvalidInput
from giornata.pretrain.data.storage import Storage


@pytest.fixture(params=["folder", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "folder":
        return Storage.at(tmp_path / "not made yet")
    return on_s3(request.getfixturevalue("seaweed"))


def on_s3(server: Seaweed) -> Storage:
    keys = f"{server.credentials.access_key_id}:{quote(server.credentials.secret_access_key)}"
    where = f"{server.bucket}/test-{secrets.token_hex(8)}"
    host = server.endpoint_url.removeprefix("http://")
    return Storage.at(f"s3://{keys}@{where}?endpoint_override={host}&scheme=http&region={server.region}")


def test_storage_file_written_twice_has_the_last_bytes(storage: Storage) -> None:
    assert not storage.exists("a/b.bin")
    assert storage.names() == []
    storage.write("a/b.bin", b"one")
    storage.write("a/b.bin", b"two")
    assert storage.read("a/b.bin") == b"two"
    assert storage.exists("a/b.bin")
    assert not storage.exists("a")
    assert storage.size_bytes("a/b.bin") == 3


def test_lists_files_at_any_depth_in_order(storage: Storage) -> None:
    for name in ("z", "a/2", "a/1/deep", "b/1"):
        storage.write(name, name.encode())
    assert storage.names() == ["a/1/deep", "a/2", "b/1", "z"]
    assert storage.names("a") == ["a/1/deep", "a/2"]
    assert storage.sizes("b") == [("b/1", 3)]
    assert storage.names("none") == []
    assert (storage / "a").names() == ["1/deep", "2"]


def test_below_a_name_is_a_storage_too(storage: Storage) -> None:
    (storage / "runs" / "one").write("x", b"1")
    assert storage.read("runs/one/x") == b"1"
    assert (storage / "runs/one").read("x") == b"1"
    with pytest.raises(ValueError, match="leads out"):
        storage.read("../x")


def test_storage_read_of_missing_file_raises_file_not_found(storage: Storage) -> None:
    with pytest.raises(FileNotFoundError):
        storage.read("none")
    with pytest.raises(FileNotFoundError):
        storage.size_bytes("none")
    storage.remove("none")
    storage.remove_all("none")


def test_storage_open_reads_a_part_of_a_file(storage: Storage) -> None:
    storage.write("numbers", b"0123456789")
    with storage.open("numbers") as stream:
        stream.seek(4)
        assert stream.read(3) == b"456"


def test_removes_a_file_and_a_folder(storage: Storage) -> None:
    for name in ("keep", "old/1", "old/2/3", "older/1"):
        storage.write(name, b"x")
    storage.remove("older/1")
    storage.remove_all("old")
    assert storage.names() == ["keep"]
    with pytest.raises(ValueError, match="whole storage"):
        storage.remove_all("/")


def test_copies_local_files_both_ways(storage: Storage, tmp_path: Path) -> None:
    content = secrets.token_bytes((16 << 20) + 5)  # more than one chunk
    (tmp_path / "here").write_bytes(content)
    storage.put(tmp_path / "here", "there/x")
    storage.get("there/x", tmp_path / "back" / "x")
    assert (tmp_path / "back" / "x").read_bytes() == content
    assert [path.name for path in (tmp_path / "back").iterdir()] == ["x"]


def test_a_writer_that_fails_leaves_nothing(storage: Storage) -> None:
    with pytest.raises(RuntimeError, match="broken"), storage._whole("y") as stream:
        stream.write(b"half")
        raise RuntimeError("broken")
    assert storage.names() == []


def test_storage_write_that_fails_in_a_folder_keeps_the_older_file(tmp_path: Path) -> None:
    storage = Storage.at(tmp_path)
    storage.write("x", b"before")
    with pytest.raises(RuntimeError, match="broken"), storage._whole("x") as stream:
        stream.write(b"half")
        raise RuntimeError("broken")
    assert storage.read("x") == b"before"
    assert storage.names() == ["x"]


def test_storage_pickled_opens_again_in_another_process(storage: Storage) -> None:
    storage.write("x", b"1")
    assert pickle.loads(pickle.dumps(storage / "")).read("x") == b"1"  # noqa: S301


def test_keys_are_not_shown(seaweed: Seaweed) -> None:
    shown = str(on_s3(seaweed) / "a")
    assert shown.startswith(f"s3://{seaweed.bucket}/test-")
    assert shown.endswith("/a")
    assert seaweed.credentials.secret_access_key not in shown


@pytest.mark.parametrize("address", ["ftp://host/x", "gs://bucket/x", "s3://"])
def test_storage_address_of_unknown_scheme_is_refused(address: str) -> None:
    with pytest.raises(InvalidInput):
        Storage.at(address)
