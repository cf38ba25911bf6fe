"""Encodings beyond the bound lie on the disk, and are read as they were written."""

import errno
import io
from pathlib import Path

import pytest
import torch

from giornata.diffusion.encode.latent_store import LatentEntry, LatentStore, unnamed_file
from giornata.domain.jobs.reasons import Reason
from giornata.workloads.train.faults import reason_of

ENTRY_BYTES = 2 * 4 * 2 * 3 * 4


def entry(number: int, *, masked: bool = False) -> LatentEntry:
    draw = torch.Generator().manual_seed(number)
    mean_CHW, std_CHW = torch.randn(2, 4, 2, 3, generator=draw)
    mask_HW = torch.rand(2, 3, generator=draw) if masked else None
    return LatentEntry(mean_CHW=mean_CHW, std_CHW=std_CHW, mask_HW=mask_HW)


def assert_equal(one: LatentEntry, other: LatentEntry) -> None:
    assert torch.equal(one.mean_CHW, other.mean_CHW)
    assert torch.equal(one.std_CHW, other.std_CHW)
    assert (one.mask_HW is None) == (other.mask_HW is None)
    if one.mask_HW is not None and other.mask_HW is not None:
        assert torch.equal(one.mask_HW, other.mask_HW)


def test_entries_beyond_the_bound_are_read_from_one_file(tmp_path: Path) -> None:
    """Also those that come after others were read, which the map does not reach yet."""
    store = LatentStore(memory_bytes=2 * ENTRY_BYTES, directory=tmp_path)
    given = {number: entry(number, masked=number % 2 == 1) for number in range(8)}
    for number, each in given.items():
        store[number] = each
        assert_equal(store[number], each)
    assert store.in_memory_bytes <= 2 * ENTRY_BYTES
    assert store.in_memory_bytes + store.on_disk_bytes == sum(each.size_bytes for each in given.values())
    assert len(store) == 8
    assert all(number in store for number in given)
    assert 8 not in store
    for number, each in given.items():
        assert_equal(store[number], each)


def test_latent_read_from_disk_stays_valid_after_store_is_closed(tmp_path: Path) -> None:
    store = LatentStore(memory_bytes=0, directory=tmp_path)
    store["a"] = entry(1)
    found = store["a"]
    store.close()
    assert_equal(found, entry(1))
    assert "a" not in store


def test_the_file_has_no_name_so_that_a_kill_leaves_nothing(tmp_path: Path) -> None:
    store = LatentStore(memory_bytes=0, directory=tmp_path)
    store["a"] = entry(1)
    assert store.on_disk_bytes == ENTRY_BYTES
    assert list(tmp_path.iterdir()) == []


def test_up_to_the_bound_there_is_no_file(tmp_path: Path) -> None:
    store = LatentStore(memory_bytes=ENTRY_BYTES, directory=tmp_path / "nowhere")
    store["a"] = entry(1)
    assert_equal(store["a"], entry(1))


class Full(io.FileIO):
    """A disk that takes so many bytes, in pieces, and no more."""

    left = ENTRY_BYTES + 7

    def write(self, content: object) -> int:
        piece = bytes(content)[: min(5, self.left)]  # type: ignore[call-overload]
        if not piece:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.left -= len(piece)
        return super().write(piece)


def test_a_full_disk_is_the_nodes_fault_and_says_what_to_do(tmp_path: Path) -> None:
    store = LatentStore(memory_bytes=0, directory=tmp_path, open_file=lambda folder: Full(folder / "rows", "w+"))
    store["a"] = entry(1)
    with pytest.raises(OSError) as caught:
        store["b"] = entry(2)
    assert reason_of(caught.value) is Reason.NODE_DISK
    for words in (str(tmp_path), f"and {ENTRY_BYTES} in a file there", "latent_memory_bytes", "No space left"):
        assert words in str(caught.value)
    assert_equal(store["a"], entry(1))
    assert "b" not in store


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    store = LatentStore(memory_bytes=0, directory=tmp_path / "nowhere", open_file=unnamed_file)
    with pytest.raises(OSError, match="nowhere"):
        store["a"] = entry(1)
