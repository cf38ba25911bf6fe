"""What a run keeps in storage."""

import pytest
from tests.unit.standalone.conftest import NOW

from giornata.domain.errors import BlobMismatch, BlobMissing, InvalidInput, Unavailable
from giornata.standalone.storage import RunStorage


def steps_of(storage):
    return [each.step for each in storage.checkpoints()]


def commit(storage, record, file, step):
    return storage.commit(step, file(b"state %d" % step), record, at=NOW)


def test_a_job_is_read_as_it_was_written(storage, record):
    assert storage.read_job() is None
    storage.write_job(record)
    assert storage.read_job() == record


def test_forget_job_removes_stored_job_and_may_be_repeated(storage, record):
    storage.write_job(record)
    storage.forget_job()
    assert storage.read_job() is None
    storage.forget_job()  # once more changes nothing


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"format": 99, "job_id": "x"}'])
def test_a_place_that_holds_something_else_is_refused(storage, content):
    storage.blobs.write("job.json", [content])
    with pytest.raises(InvalidInput, match="checkpoint-to"):
        storage.read_job()


def test_a_later_format_is_refused_by_its_number(storage, record):
    storage.write_job(record.model_copy(update={"format": 7}))
    with pytest.raises(InvalidInput, match="format 7"):
        storage.read_job()


def test_a_checkpoint_comes_back_and_the_highest_step_first(storage, record, file, tmp_path):
    for step in (20, 100, 40):
        commit(storage, record, file, step)
    assert steps_of(storage) == [100, 40, 20]
    newest = storage.checkpoints()[0]
    assert (newest.spec_sha256, newest.data_sha256, newest.size_bytes) == ("b" * 64, "c" * 64, 9)
    storage.fetch(newest, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == b"state 100"


def test_bytes_without_a_manifest_are_no_checkpoint(storage, record, file):
    """As a kill between the two leaves it."""
    manifest = commit(storage, record, file, 20)
    storage.blobs.write("checkpoints/00000040-0123456789abcdef.safetensors", [b"half"])
    assert storage.checkpoints() == [manifest]


def test_the_manifest_is_written_after_the_bytes(storage, record, file):
    class NoManifests:
        def write(self, key, chunks):
            if key.endswith(".json"):
                raise Unavailable("the line is cut")
            return storage.blobs.write(key, chunks)

    with pytest.raises(Unavailable):
        RunStorage(blobs=NoManifests(), name="cut").commit(20, file(b"state"), record, at=NOW)
    assert [info.key.endswith(".safetensors") for info in storage.blobs.list("")] == [True]


def test_damaged_and_missing_bytes_are_told_apart_from_whole_ones(storage, record, file, tmp_path):
    manifest = commit(storage, record, file, 20)
    storage.blobs.write(manifest.key, [b"spoiled!!"])
    with pytest.raises(BlobMismatch):
        storage.fetch(manifest, tmp_path / "back")
    storage.blobs.delete(manifest.key)
    with pytest.raises(BlobMissing):
        storage.fetch(manifest, tmp_path / "back")


def test_a_manifest_that_cannot_be_read_hides_its_checkpoint_only(storage, record, file):
    for step in (20, 40):
        commit(storage, record, file, step)
    storage.blobs.write("checkpoints/00000040.json", [b"{"])
    assert steps_of(storage) == [20]


def test_cleaning_keeps_the_latest_and_each_of_a_kind(storage, record, file):
    for step in (10, 20, 30, 40, 50):
        commit(storage, record, file, step)
    assert storage.clean(latest=2, every=20) == [30, 10]
    assert steps_of(storage) == [50, 40, 20]
    assert len(list(storage.blobs.list("checkpoints/"))) == 6


def test_cleaning_takes_what_a_killed_run_left_but_nothing_that_may_still_be_on_its_way(storage, record, file):
    commit(storage, record, file, 40)
    for step in (30, 50):
        storage.blobs.write(f"checkpoints/{step:08d}-0123456789abcdef.safetensors", [b"half"])
    storage.clean(latest=2, every=None)
    left = sorted(info.key for info in storage.blobs.list("checkpoints/") if "0123456789abcdef" in info.key)
    assert left == ["checkpoints/00000050-0123456789abcdef.safetensors"]


def test_a_cache_gives_back_what_it_was_given(storage, file, tmp_path):
    assert not storage.find_cache("class-images-1", tmp_path / "back")
    storage.put_cache("class-images-1", file(b"pictures"))
    assert storage.find_cache("class-images-1", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == b"pictures"
    assert not storage.find_cache("class-images-2", tmp_path / "back")


def test_a_damaged_cache_is_no_cache(storage, file, tmp_path):
    storage.put_cache("class-images-1", file(b"pictures"))
    blob = next(info.key for info in storage.blobs.list("caches/") if info.key.endswith(".bin"))
    storage.blobs.write(blob, [b"spoiled"])
    assert not storage.find_cache("class-images-1", tmp_path / "back")
