"""Tensors in one file of the disk that has no name and goes with the process that made it."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch

from giornata.diffusion.encode.latent_store import OpenFile, unnamed_file


@dataclass(frozen=True, slots=True, kw_only=True)
class ScratchRow:
    """The place of some tensors in the file: one after the other, all of one dtype."""

    offset_bytes: int
    size_bytes: int
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype


class ScratchFile:
    """A file of `directory` to which tensors are appended, and read back to the bit. Several threads may read at a
    time."""

    def __init__(self, directory: Path, open_file: OpenFile = unnamed_file) -> None:
        self._directory, self._open = directory, open_file
        self._file: IO[bytes] | None = None
        self.size_bytes = 0

    def append(self, tensors: Sequence[torch.Tensor]) -> ScratchRow:
        """Write tensors of one dtype, from any device. Raises OSError that names the folder when the disk is full."""
        content = b"".join(each.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes() for each in tensors)
        row = ScratchRow(
            offset_bytes=self.size_bytes,
            size_bytes=len(content),
            shapes=tuple(tuple(each.shape) for each in tensors),
            dtype=tensors[0].dtype,
        )
        try:
            if self._file is None:
                self._file = self._open(self._directory)
            self._file.seek(self.size_bytes)
            left = memoryview(content)
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            words = f"{self._directory}: no room for {len(content)} more bytes ({error.strerror}); free the disk"
            raise OSError(error.errno, words) from error
        self.size_bytes += len(content)
        return row

    def read(self, row: ScratchRow) -> list[torch.Tensor]:
        """Copy the tensors of one row to the CPU."""
        if self._file is None:
            raise ValueError("the file was given back")
        content = bytearray(os.pread(self._file.fileno(), row.size_bytes, row.offset_bytes))
        numbers = torch.frombuffer(content, dtype=row.dtype)
        counts = [torch.Size(shape).numel() for shape in row.shapes]
        return [part.view(shape) for part, shape in zip(numbers.split(counts), row.shapes, strict=True)]

    def close(self) -> None:
        """Give the disk back. Nothing can be read afterwards."""
        if self._file is not None:
            self._file.close()
        self._file = None
