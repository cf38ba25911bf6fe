"""Rows that may be larger than memory, cut into partitions by a value of each: a partition is worked on in memory.

All rows of one value are in one partition. Where everything fits at once, nothing is written to the disk.
"""

from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

ROW = np.dtype([("key", "S32"), ("number", "<i8"), ("pixels", "<i8"), ("hash", "<u8")])
"""A picture: the sha256 of its bytes, its number in the source, its size in pixels and its perceptual hash."""
WORKING_BYTES = 4 * ROW.itemsize
"""Memory for a row of a partition: itself, its place in an order, and copies."""
_MOST = 4096
_ODD = np.uint64(0x9E3779B97F4A7C15)


class Partitions:
    """Rows of ROW, added in any order, and gone through partition by partition, as often as wanted."""

    def __init__(self, folder: Path, rows: int, memory_bytes: int) -> None:
        """For so many `rows`. Files are made in a new folder in `folder`."""
        self._count = min(_MOST, -(-rows * WORKING_BYTES // memory_bytes) or 1)
        self._folder = Path(mkdtemp(dir=folder)) if self._count > 1 else None
        self._held: list[np.ndarray] = []
        self._limits = folder, memory_bytes
        self.rows = 0

    def another(self, rows: int | None = None) -> "Partitions":
        """An empty one with the same limits, for as many rows as are here, or as given."""
        folder, memory_bytes = self._limits
        return Partitions(folder, self.rows if rows is None else rows, memory_bytes)

    def add(self, rows: np.ndarray, values: np.ndarray) -> None:
        """Rows, each to the partition of its value."""
        self.rows += len(rows)
        if self._folder is None:
            self._held.append(rows)
            return
        mixed = (values.astype(np.uint64) * _ODD) >> np.uint64(32)
        places = mixed % np.uint64(self._count)
        order = np.argsort(places, kind="stable")
        numbers, starts = np.unique(places[order], return_index=True)
        for number, part in zip(numbers, np.split(rows[order], starts[1:]), strict=True):
            with (self._folder / str(number)).open("ab") as file:
                part.tofile(file)

    def __iter__(self) -> Iterator[np.ndarray]:
        if self._folder is None:
            yield from [np.concatenate(self._held)] if self._held else []
            return
        for path in self._folder.iterdir():
            yield np.fromfile(path, ROW)

    def drop(self) -> None:
        """Forget the rows."""
        self._held = []
        for path in self._folder.iterdir() if self._folder else ():
            path.unlink()
