"""The cache stays within its bound, and nobody loses what is being read or was never ours."""

import os
from pathlib import Path

import pytest

from giornata.diffusion.base.hub import HubCache

MIB = 2**20


def cached(directory: Path, repository: str, size_bytes: int = MIB) -> Path:
    """A repository as the hub's library lays it out."""
    folder = directory / f"models--{repository.replace('/', '--')}"
    commit = "c" * 40
    for part in ("blobs", f"snapshots/{commit}", "refs"):
        (folder / part).mkdir(parents=True)
    (folder / "blobs" / "b").write_bytes(bytes(size_bytes))
    (folder / "snapshots" / commit / "model.safetensors").symlink_to("../../blobs/b")
    (folder / "refs" / "main").write_text(commit)
    return folder


def fetched(directory: Path, repository: str, *, used_at_s: int, size_bytes: int = MIB) -> Path:
    """A repository that a node fetched and has read at this time."""
    cache = HubCache(directory=directory)
    cache.using(repository)
    folder = cached(directory, repository, size_bytes)
    cache.close()
    os.utime(cache._mark(repository), (used_at_s, used_at_s))
    return folder


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    fetched(tmp_path, "a/second", used_at_s=200)
    fetched(tmp_path, "a/first", used_at_s=100)
    fetched(tmp_path, "a/third", used_at_s=300)
    return tmp_path


def names(directory: Path) -> set[str]:
    return {path.name.rpartition("--")[2] for path in directory.glob("models--*")}


def test_hub_cache_trim_removes_least_recently_used_first(hub: Path) -> None:
    assert HubCache(directory=hub, bound_bytes=2 * MIB + MIB // 2).trim() == ["a/first"]
    assert names(hub) == {"second", "third"}
    assert HubCache(directory=hub, bound_bytes=0).trim() == ["a/second", "a/third"]
    assert names(hub) == set()
    assert HubCache(directory=hub, bound_bytes=0).trim() == []


def test_a_use_makes_it_the_last_to_go(hub: Path) -> None:
    reader = HubCache(directory=hub)
    reader.using("a/first")
    reader.close()
    assert HubCache(directory=hub, bound_bytes=2 * MIB).trim() == ["a/second"]


def test_hub_cache_trim_keeps_models_in_use_by_any_process(hub: Path) -> None:
    elsewhere, here = HubCache(directory=hub), HubCache(directory=hub, bound_bytes=0)
    elsewhere.using("a/first")
    here.using("a/second")
    assert here.trim() == ["a/third"]
    assert names(hub) == {"first", "second"}
    elsewhere.close()
    assert here.trim() == ["a/first"]
    here.close()
    assert HubCache(directory=hub, bound_bytes=0).trim() == ["a/second"]


def test_hub_cache_neither_counts_nor_trims_models_it_did_not_download(hub: Path) -> None:
    cached(hub, "mine/huge", 50 * MIB)
    reader = HubCache(directory=hub, bound_bytes=3 * MIB)
    reader.using("mine/huge")
    assert reader.trim() == []
    reader.close()
    assert HubCache(directory=hub, bound_bytes=0).trim() == ["a/first", "a/second", "a/third"]
    assert names(hub) == {"huge"}


def test_hub_cache_without_bound_or_folder_trims_nothing(hub: Path, tmp_path: Path) -> None:
    assert HubCache(directory=hub).trim() == []
    assert HubCache(directory=tmp_path / "none", bound_bytes=0).trim() == []
    assert names(hub) == {"first", "second", "third"}
