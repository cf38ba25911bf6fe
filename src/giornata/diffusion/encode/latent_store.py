"""The store of a job's encoded pictures: in memory up to a bound, and beyond it in one file on the disk.

Shapes: C = 4 latent channels; H, W = pixels / 8.

The file has no name, so that it goes with the process that made it, whatever ends that process. Rows are appended by
plain writes and read through a memory map: a full disk is then an error of the write, and not a signal of the map.
"""

import mmap
import tempfile
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import torch

MEMORY_BYTES = 2**31
FLOAT_BYTES = 4

OpenFile = Callable[[Path], IO[bytes]]
"""Opens a file for reading and writing that has no name, in this folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentEntry:
    """The posterior of one view, and its mask when the job uses masks and the picture has one; float32 on the CPU."""

    mean_CHW: torch.Tensor
    std_CHW: torch.Tensor
    mask_HW: torch.Tensor | None = None

    @property
    def size_bytes(self) -> int:
        """Return the bytes that the entry's tensors take."""
        return self.mean_CHW.nbytes + self.std_CHW.nbytes + (0 if self.mask_HW is None else self.mask_HW.nbytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRow:
    """The place of an entry in the file: mean, deviation and mask, one after the other."""

    offset_bytes: int
    shape_CHW: tuple[int, int, int]
    masked: bool


def unnamed_file(directory: Path) -> IO[bytes]:
    """Open a file of `directory` that no other process finds, and that goes when it is closed."""
    return tempfile.TemporaryFile(dir=directory, buffering=0)


class LatentStore:
    """A store of entries by their keys. Entries that come when `memory_bytes` are full go into a file in `directory`;
    None, a file in the system's folder for temporary files.

    One thread adds entries; when it has done so, others may read.
    """

    def __init__(
        self, *, memory_bytes: int = MEMORY_BYTES, directory: Path | None = None, open_file: OpenFile = unnamed_file
    ) -> None:
        self._bound_bytes, self._open = memory_bytes, open_file
        self._directory = Path(tempfile.gettempdir()) if directory is None else directory
        self._entries: dict[Hashable, LatentEntry] = {}
        self._rows: dict[Hashable, StoredRow] = {}
        self._file: IO[bytes] | None = None
        self._map: mmap.mmap | None = None
        self.in_memory_bytes = 0
        self.on_disk_bytes = 0

    def __len__(self) -> int:
        return len(self._entries) + len(self._rows)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries or key in self._rows

    def __getitem__(self, key: Hashable) -> LatentEntry:
        entry = self._entries.get(key)
        return self._read(self._rows[key]) if entry is None else entry

    def __setitem__(self, key: Hashable, entry: LatentEntry) -> None:
        """Keep an entry. Raises OSError with words for the node's owner when the disk takes no more."""
        if self.in_memory_bytes + entry.size_bytes <= self._bound_bytes:
            self._entries[key] = entry
            self.in_memory_bytes += entry.size_bytes
        else:
            self._rows[key] = self._append(entry)

    def close(self) -> None:
        """Give the memory and the disk back."""
        if self._map is not None:
            self._map.close()
        if self._file is not None:
            self._file.close()
        self._map = self._file = None
        self._entries.clear()
        self._rows.clear()

    def _append(self, entry: LatentEntry) -> StoredRow:
        parts = (entry.mean_CHW, entry.std_CHW, *(() if entry.mask_HW is None else (entry.mask_HW,)))
        content = b"".join(part.contiguous().numpy().tobytes() for part in parts)
        shape_CHW = (int(entry.mean_CHW.shape[0]), int(entry.mean_CHW.shape[1]), int(entry.mean_CHW.shape[2]))
        row = StoredRow(offset_bytes=self.on_disk_bytes, shape_CHW=shape_CHW, masked=entry.mask_HW is not None)
        try:
            if self._file is None:
                self._file = self._open(self._directory)
            self._write(self._file, content)
        except OSError as error:
            raise OSError(error.errno, self._in_words(error, len(content))) from error
        self.on_disk_bytes += len(content)
        return row

    def _write(self, file: IO[bytes], content: bytes) -> None:
        """Write all bytes, at the end of the last whole row."""
        file.seek(self.on_disk_bytes)
        left = memoryview(content)
        while left:
            left = left[file.write(left) :]

    def _in_words(self, error: OSError, more_bytes: int) -> str:
        return (
            f"{self._directory}: no room for {more_bytes} more bytes of encoded pictures ({error.strerror}); "
            f"{self.in_memory_bytes} bytes lie in memory and {self.on_disk_bytes} in a file there; "
            "free the disk, or set latent_memory_bytes higher"
        )

    def _read(self, row: StoredRow) -> LatentEntry:
        channels, height, width = row.shape_CHW
        of_mean, of_mask = channels * height * width, height * width
        count = 2 * of_mean + (of_mask if row.masked else 0)
        # A copy: nothing of the caller's points into the map, which can be closed at any time.
        numbers = torch.from_numpy(
            np.frombuffer(self._mapped(row, count), np.float32, count, row.offset_bytes).copy()
        )
        return LatentEntry(
            mean_CHW=numbers[:of_mean].view(row.shape_CHW),
            std_CHW=numbers[of_mean : 2 * of_mean].view(row.shape_CHW),
            mask_HW=numbers[2 * of_mean :].view(height, width) if row.masked else None,
        )

    def _mapped(self, row: StoredRow, count: int) -> mmap.mmap:
        """Return a map that reaches to the end of the row."""
        end_bytes = row.offset_bytes + FLOAT_BYTES * count
        if self._file is None:
            raise ValueError("the encodings of this job were given back")
        if self._map is None or len(self._map) < end_bytes:
            self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        return self._map
