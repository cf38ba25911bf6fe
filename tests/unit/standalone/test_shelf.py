"""What a run keeps in storage."""

import pytest
from tests.unit.standalone.conftest import NOW

from giornata.domain.errors import BlobMismatch, BlobMissing, InvalidInput, Unavailable
from giornata.standalone.shelf import Shelf


def steps_of(shelf):
    return [each.step for each in shelf.checkpoints()]


def commit(shelf, record, file, step):
    return shelf.commit(step, file(b"state %d" % step), record, at=NOW)


def test_a_job_is_read_as_it_was_written(shelf, record):
    assert shelf.read_job() is None
    shelf.write_job(record)
    assert shelf.read_job() == record


def test_another_job_may_run_where_one_was_forgotten(shelf, record):
    shelf.write_job(record)
    shelf.forget_job()
    assert shelf.read_job() is None
    shelf.forget_job()  # once more changes nothing


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"format": 99, "job_id": "x"}'])
def test_a_place_that_holds_something_else_is_refused(shelf, content):
    shelf.blobs.write("job.json", [content])
    with pytest.raises(InvalidInput, match="checkpoint-to"):
        shelf.read_job()


def test_a_later_format_is_refused_by_its_number(shelf, record):
    shelf.write_job(record.model_copy(update={"format": 7}))
    with pytest.raises(InvalidInput, match="format 7"):
        shelf.read_job()


def test_a_checkpoint_comes_back_and_the_highest_step_first(shelf, record, file, tmp_path):
    for step in (20, 100, 40):
        commit(shelf, record, file, step)
    assert steps_of(shelf) == [100, 40, 20]
    newest = shelf.checkpoints()[0]
    assert (newest.spec_sha256, newest.data_sha256, newest.size_bytes) == ("b" * 64, "c" * 64, 9)
    shelf.fetch(newest, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == b"state 100"


def test_bytes_without_a_manifest_are_no_checkpoint(shelf, record, file):
    """As a kill between the two leaves it."""
    manifest = commit(shelf, record, file, 20)
    shelf.blobs.write("checkpoints/00000040-0123456789abcdef.safetensors", [b"half"])
    assert shelf.checkpoints() == [manifest]


def test_the_manifest_is_written_after_the_bytes(shelf, record, file):
    class NoManifests:
        def write(self, key, chunks):
            if key.endswith(".json"):
                raise Unavailable("the line is cut")
            return shelf.blobs.write(key, chunks)

    with pytest.raises(Unavailable):
        Shelf(blobs=NoManifests(), name="cut").commit(20, file(b"state"), record, at=NOW)
    assert [info.key.endswith(".safetensors") for info in shelf.blobs.list("")] == [True]


def test_damaged_and_missing_bytes_are_told_apart_from_whole_ones(shelf, record, file, tmp_path):
    manifest = commit(shelf, record, file, 20)
    shelf.blobs.write(manifest.key, [b"spoilt!!"])
    with pytest.raises(BlobMismatch):
        shelf.fetch(manifest, tmp_path / "back")
    shelf.blobs.delete(manifest.key)
    with pytest.raises(BlobMissing):
        shelf.fetch(manifest, tmp_path / "back")


def test_a_manifest_that_cannot_be_read_hides_its_checkpoint_only(shelf, record, file):
    for step in (20, 40):
        commit(shelf, record, file, step)
    shelf.blobs.write("checkpoints/00000040.json", [b"{"])
    assert steps_of(shelf) == [20]


def test_cleaning_keeps_the_latest_and_each_of_a_kind(shelf, record, file):
    for step in (10, 20, 30, 40, 50):
        commit(shelf, record, file, step)
    assert shelf.clean(latest=2, every=20) == [30, 10]
    assert steps_of(shelf) == [50, 40, 20]
    assert len(list(shelf.blobs.list("checkpoints/"))) == 6


def test_cleaning_takes_what_a_killed_run_left_but_nothing_that_may_still_be_on_its_way(shelf, record, file):
    commit(shelf, record, file, 40)
    for step in (30, 50):
        shelf.blobs.write(f"checkpoints/{step:08d}-0123456789abcdef.safetensors", [b"half"])
    shelf.clean(latest=2, every=None)
    left = sorted(info.key for info in shelf.blobs.list("checkpoints/") if "0123456789abcdef" in info.key)
    assert left == ["checkpoints/00000050-0123456789abcdef.safetensors"]


def test_a_cache_gives_back_what_it_was_given(shelf, file, tmp_path):
    assert not shelf.find_cache("class-images-1", tmp_path / "back")
    shelf.put_cache("class-images-1", file(b"pictures"))
    assert shelf.find_cache("class-images-1", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == b"pictures"
    assert not shelf.find_cache("class-images-2", tmp_path / "back")


def test_a_damaged_cache_is_no_cache(shelf, file, tmp_path):
    shelf.put_cache("class-images-1", file(b"pictures"))
    blob = next(info.key for info in shelf.blobs.list("caches/") if info.key.endswith(".bin"))
    shelf.blobs.write(blob, [b"spoilt"])
    assert not shelf.find_cache("class-images-1", tmp_path / "back")
