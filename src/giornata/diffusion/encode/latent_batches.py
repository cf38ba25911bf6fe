"""Encodes pictures of one size with the VAE, several at a time where the device gains by it.

Shapes: B pictures of a batch; C = 4 latent channels, of pixels C = 3; H, W of the pixels or, for latents, pixels / 8.

The bits of a latent may depend on how many pictures go through the VAE together: on a CPU they do (by up to 1e-6,
measured with the tiny model). They must not depend on which pictures an attempt still has to encode. So a CPU takes
one picture at a time. A GPU always takes the same number of one size, with zeros where pictures are missing. The
number is a function of the VAE, the size and the device. The first batch of a size is encoded twice, the second time
with each picture in another place. Where that changes a bit, pictures of this size go one at a time.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from giornata.diffusion.base import memory
from giornata.diffusion.encode import pixels
from giornata.diffusion.encode.latent_store import LatentEntry
from giornata.domain.files.buckets import Size

MOST_ROWS = 8
"""The rows beyond which a batch gains nothing; a guess, for no GPU was at hand."""
SHARE = 1 / 16
"""Part of the device's memory that a batch may take. A step takes more than this anyway."""

RowsOf = Callable[[Size], int]
"""The function from a size (height, width) in pixels to the pictures that go through the VAE at a time."""


def one_row(_: Size) -> int:
    """Return 1: one picture at a time."""
    return 1


def rows_on(vae: Any, device: torch.device) -> RowsOf:
    """Return the rows that suit this device: one on a CPU, and on a GPU as many as fit into a sixteenth of its
    memory."""
    if device.type != "cuda":
        return one_row
    total_bytes = torch.cuda.get_device_properties(device).total_memory
    return lambda size: rows_within(vae, size, total_bytes=total_bytes)


def rows_within(vae: Any, size: Size, *, total_bytes: int) -> int:
    """Return how many pictures go together: a power of two, for a device of this memory."""
    height, width = size
    square_bytes = memory.vae_bytes(int(vae.config.block_out_channels[0]), 1, vae.dtype.itemsize)
    fitting = int(total_bytes * SHARE) // (square_bytes * height * width)
    return 1 << (max(1, min(MOST_ROWS, fitting)).bit_length() - 1)


class LatentBatches:
    """An encoder of pictures of one size, `rows` at a time."""

    def __init__(self, vae: Any, rows_of: RowsOf = one_row) -> None:
        self._vae, self._rows_of = vae, rows_of
        self._alone: dict[Size, bool] = {}

    def rows(self, size: Size) -> int:
        """Return how many pictures of this size are encoded together."""
        return 1 if self._alone.get(size, False) else self._rows_of(size)

    def encode(self, pictures_HWC: Sequence[np.ndarray]) -> list[LatentEntry]:
        """Encode at most `rows` pictures of one size, uint8."""
        size = (int(pictures_HWC[0].shape[0]), int(pictures_HWC[0].shape[1]))
        rows = self.rows(size)
        if rows > 1:
            missing = [torch.zeros(1, 3, *size)] * (rows - len(pictures_HWC))
            batch_BCHW = torch.cat([*map(pixels.to_model_range, pictures_HWC), *missing])
            mean_BCHW, std_BCHW = self._posterior(batch_BCHW)
            if size not in self._alone:
                other_mean_BCHW, other_std_BCHW = self._posterior(batch_BCHW.roll(1, 0))
                equal = torch.equal(other_mean_BCHW, mean_BCHW.roll(1, 0))
                self._alone[size] = not (equal and torch.equal(other_std_BCHW, std_BCHW.roll(1, 0)))
            if not self._alone[size]:
                return [
                    LatentEntry(mean_CHW=mean_BCHW[place].clone(), std_CHW=std_BCHW[place].clone())
                    for place in range(len(pictures_HWC))
                ]
        return [encode(self._vae, picture_HWC) for picture_HWC in pictures_HWC]

    def _posterior(self, pixels_BCHW: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return posterior(self._vae, pixels_BCHW)


def encode(vae: Any, pixels_HWC: np.ndarray) -> LatentEntry:
    """Return mean and standard deviation of the VAE's posterior, for one rectangle of uint8 pixels."""
    mean_BCHW, std_BCHW = posterior(vae, pixels.to_model_range(pixels_HWC))
    return LatentEntry(mean_CHW=mean_BCHW[0], std_CHW=std_BCHW[0])


@torch.no_grad()
def posterior(vae: Any, pixels_BCHW: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean_BCHW and std_BCHW, float32 on the CPU, of pixels in -1 … 1."""
    found = vae.encode(pixels_BCHW.to(device=vae.device, dtype=vae.dtype)).latent_dist
    mean_BCHW, std_BCHW = (each.to(device="cpu", dtype=torch.float32) for each in (found.mean, found.std))
    return mean_BCHW, std_BCHW
