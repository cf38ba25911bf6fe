"""The directories of the agent: its cache of inputs, and the directories of each attempt."""

import hashlib
import os
import stat
from pathlib import Path

import pytest

from giornata.agent.transfer.blob_cache import RECOUNT_SHARE, BlobCache
from giornata.agent.work_dir import WorkDir
from giornata.domain.errors import InvalidInput
from giornata.protocol.uploads import Download


def blob(content: bytes) -> Download:
    request = {"method": "GET", "url": "http://storage/x", "expires_at": "2030-01-01T00:00:00Z"}
    sha256 = hashlib.sha256(content).hexdigest()
    return Download.model_validate({"sha256": sha256, "size_bytes": len(content), "request": request})


class Fetch:
    """Stands for a download: writes the content and counts."""

    def __init__(self, content: bytes) -> None:
        self.content, self.times = content, 0

    def __call__(self, what: Download, path: Path) -> None:
        self.times += 1
        path.write_bytes(self.content)


def test_the_cache_fetches_once(tmp_path: Path) -> None:
    cache, fetch = BlobCache(tmp_path / "cache", max_bytes=1000), Fetch(b"bytes")
    cache.place(blob(b"bytes"), tmp_path / "one", fetch)
    cache.place(blob(b"bytes"), tmp_path / "two", fetch)
    assert ((tmp_path / "one").read_bytes(), (tmp_path / "two").read_bytes(), fetch.times) == (b"bytes", b"bytes", 1)


def test_the_cache_does_not_hand_out_what_the_disk_has_spoiled(tmp_path: Path) -> None:
    cache, fetch = BlobCache(tmp_path / "cache", max_bytes=1000), Fetch(b"bytes")
    cache.place(blob(b"bytes"), tmp_path / "one", fetch)
    (tmp_path / "one").unlink()
    [entry] = (tmp_path / "cache").glob("??/*")
    entry.write_bytes(b"bytez")
    cache.place(blob(b"bytes"), tmp_path / "two", fetch)
    assert ((tmp_path / "two").read_bytes(), fetch.times) == (b"bytes", 2)


def test_a_fetch_that_breaks_off_leaves_nothing_in_the_cache(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path / "cache", max_bytes=1000)
    job_dir = tmp_path / "job"
    job_dir.mkdir()

    def die(_: Download, path: Path) -> None:
        path.with_name(".half.part").write_bytes(b"by")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.place(blob(b"bytes"), job_dir / "one", die)
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []
    cache.place(blob(b"bytes"), job_dir / "one", Fetch(b"bytes"))
    assert sorted(path.name for path in job_dir.iterdir()) == [".half.part", "one"]
    assert [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()] == [blob(b"bytes").sha256]


def test_the_cache_is_bounded_and_evicts_what_was_used_least_recently(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path / "cache", max_bytes=25)
    contents = [bytes([65 + number]) * 10 for number in range(3)]
    for number, content in enumerate(contents):
        cache.place(blob(content), tmp_path / f"{number}", Fetch(content))
        if number == 1:
            cache.place(blob(contents[0]), tmp_path / "again", Fetch(b""))
    kept = {path.name for path in (tmp_path / "cache").glob("??/*")}
    assert kept == {blob(contents[0]).sha256, blob(contents[2]).sha256}
    assert (tmp_path / "1").read_bytes() == contents[1]  # whoever uses it keeps it


@pytest.mark.parametrize("most", [10**6, 2_000], ids=["room for all", "always full"])
def test_the_cache_reads_its_directory_for_few_of_many_files(tmp_path: Path, most: int) -> None:
    """Read for each file, a folder of 10,000 pictures took minutes of nothing else."""
    cache = CountingCache(tmp_path / "cache", max_bytes=most)
    for number in range(600):
        content = f"{number:010}".encode()
        cache.place(blob(content), tmp_path / f"{number}", Fetch(content))
        kept_bytes = sum(path.stat().st_size for path in (tmp_path / "cache").glob("??/*")) if number % 50 == 0 else 0
        assert kept_bytes <= most
    assert cache.times_read <= 2 * (600 * 10 / (most * RECOUNT_SHARE) + 1)


class CountingCache(BlobCache):
    """Counts how often the whole directory is read."""

    times_read = 0

    def _trim(self, *, keep: Path) -> int:
        self.times_read += 1
        return super()._trim(keep=keep)


def test_work_dir_wipes_run_of_dead_process_and_keeps_run_of_live_one(tmp_path: Path) -> None:
    alive = WorkDir(tmp_path)
    dead = tmp_path / "run-dead"
    (dead / "att_1").mkdir(parents=True)
    (dead / "lock").touch()
    with alive.job_dir("att_2") as job_dir:
        (job_dir.work / "file").touch()
        other = WorkDir(tmp_path)
        assert not dead.exists()
        assert (job_dir.work / "file").exists()
        other.close()
    assert not job_dir.work.exists()
    alive.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "compiled"]


def test_a_work_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match=r"work_dir .*file"):
        WorkDir(tmp_path / "file")


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_node_folders_are_mode_0700_whatever_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        directory = tmp_path / "node"
        (directory / "cache").mkdir(parents=True)  # as an earlier version left it
        directory.chmod(0o700)
        workplace = WorkDir(directory)
        fresh = WorkDir(tmp_path / "fresh")
    finally:
        os.umask(before)
    folders = [tmp_path / "fresh", *directory.iterdir(), *(tmp_path / "fresh").iterdir()]
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {0o700}
    workplace.close()
    fresh.close()
