"""Rows of an ingest, divided by their keys so that one partition fits into memory."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

ROW = np.dtype([("key", "S32"), ("number", "<i8")])
"""A picture: the sha256 of its bytes, and its number in the source."""
WORKING_BYTES = 4 * ROW.itemsize
"""Memory for a row of a partition: the row, its place in an order, and copies."""
_MAX_PARTITIONS = 4096
_ODD = np.uint64(0x9E3779B97F4A7C15)


class Partitions:
    """Rows of ROW, divided by their keys. All rows of one key are in one partition.

    Rows that fit into memory together are not written to the disk.
    """

    def __init__(self, folder: Path, rows: int, memory_bytes: int) -> None:
        """Partitions for this many `rows`. Files lie in `folder`, which is empty."""
        self._count = min(_MAX_PARTITIONS, -(-rows * WORKING_BYTES // memory_bytes) or 1)
        self._folder = folder if self._count > 1 else None
        self._in_memory: list[np.ndarray] = []

    def add(self, rows: np.ndarray) -> None:
        if self._folder is None:
            self._in_memory.append(rows)
            return
        values = np.ascontiguousarray(rows["key"]).view("<u8")[::4]
        places = ((values * _ODD) >> np.uint64(32)) % np.uint64(self._count)
        order = np.argsort(places, kind="stable")
        numbers, starts = np.unique(places[order], return_index=True)
        for number, part in zip(numbers, np.split(rows[order], starts[1:]), strict=True):
            with (self._folder / str(number)).open("ab") as file:
                part.tofile(file)

    def __iter__(self) -> Iterator[np.ndarray]:
        if self._in_memory:
            yield np.concatenate(self._in_memory)
        for path in self._folder.iterdir() if self._folder else ():
            yield np.fromfile(path, ROW)
