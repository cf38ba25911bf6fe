"""Pictures are encoded together where the device gains by it, and no bit depends on which of them are left."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.encode.latent_batches import LatentBatches, encode, one_row, rows_on, rows_within
from giornata.diffusion.encode.latents import CropPolicy, CropView, LatentCache

GIB = 2**30


def pixels_of(number: int, height: int = 64, width: int = 64) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (height, width, 3), dtype=np.uint8)


class RecordingVae:
    """A VAE that tells how many pictures it was given at a time; `changed` is done to the mean."""

    def __init__(self, vae: Any, changed: Callable[[torch.Tensor], torch.Tensor] = lambda mean: mean) -> None:
        self.vae, self.device, self.dtype, self.config, self.changed = vae, vae.device, vae.dtype, vae.config, changed
        self.batches: list[int] = []

    def encode(self, pixels_BCHW: torch.Tensor) -> Any:
        self.batches.append(len(pixels_BCHW))
        found = self.vae.encode(pixels_BCHW).latent_dist
        return SimpleNamespace(latent_dist=SimpleNamespace(mean=self.changed(found.mean), std=found.std))


def test_latents_encoded_in_batch_equal_single_ones_up_to_rounding(tiny_base: BaseModel) -> None:
    pictures = [pixels_of(number) for number in range(4)]
    together = LatentBatches(tiny_base.vae, lambda _: 4).encode(pictures)
    for picture, entry in zip(pictures, together, strict=True):
        alone = encode(tiny_base.vae, picture)
        torch.testing.assert_close(entry.mean_CHW, alone.mean_CHW, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(entry.std_CHW, alone.std_CHW, rtol=1e-4, atol=1e-5)


def test_a_batch_that_is_not_full_has_the_same_bits(tiny_base: BaseModel) -> None:
    """An attempt that resumes encodes fewer pictures, in other places."""
    vae = RecordingVae(tiny_base.vae)
    batches = LatentBatches(vae, lambda _: 4)
    pictures = [pixels_of(number) for number in range(4)]
    whole, rest = batches.encode(pictures), batches.encode(pictures[2:])
    for entry, again in zip(whole[2:], rest, strict=True):
        assert torch.equal(entry.mean_CHW, again.mean_CHW)
        assert torch.equal(entry.std_CHW, again.std_CHW)
    assert vae.batches == [4, 4, 4]  # the first one twice, with each picture in another place


def test_latents_are_encoded_one_at_a_time_where_bits_depend_on_batch_position(tiny_base: BaseModel) -> None:
    def by_place(mean_BCHW: torch.Tensor) -> torch.Tensor:
        return mean_BCHW + torch.arange(len(mean_BCHW)).view(-1, 1, 1, 1) * 1e-7

    vae = RecordingVae(tiny_base.vae, by_place)
    batches = LatentBatches(vae, lambda _: 2)
    found = batches.encode([pixels_of(1), pixels_of(2)])
    assert vae.batches == [2, 2, 1, 1]
    assert batches.rows((64, 64)) == 1
    assert batches.rows((64, 96)) == 2
    assert torch.equal(found[1].mean_CHW, encode(tiny_base.vae, pixels_of(2)).mean_CHW)


def test_a_cpu_takes_one_at_a_time(tiny_base: BaseModel) -> None:
    assert rows_on(tiny_base.vae, torch.device("cpu")) is one_row


@pytest.mark.parametrize(
    ("total_gib", "side", "rows"), [(8, 1024, 1), (24, 1024, 1), (80, 1024, 4), (140, 1024, 8), (24, 512, 4)]
)
def test_a_batch_takes_at_most_a_sixteenth_of_the_device(total_gib: int, side: int, rows: int) -> None:
    """SDXL's VAE takes 1 GiB for a picture of 1024 x 1024 in bf16 (diffusion/base/memory.py)."""
    vae = SimpleNamespace(config=SimpleNamespace(block_out_channels=(128, 256)), dtype=torch.bfloat16)
    assert rows_within(vae, (side, side), total_bytes=total_gib * GIB) == rows


def test_pictures_wait_for_others_of_their_size(tiny_base: BaseModel) -> None:
    """Two buckets of different sizes; equal views wait together, and are one row."""
    vae = RecordingVae(tiny_base.vae)
    frame = CropPolicy(
        seed=1, resolution=64, center_crop=True, random_flip=False, buckets=((64, 64), (48, 80)), masked=False
    )
    cache = LatentCache(vae=vae, vae_key="v", crop_policy=frame, rows_of=lambda _: 2)
    views = [CropView(picture_sha256=letter * 64, crop=0, flip=False) for letter in "abc"]
    done: list[int] = []
    for view, size in zip(views, ((64, 64), (80, 48), (64, 64)), strict=True):
        picture = Image.fromarray(pixels_of(1, size[1], size[0]))
        cache.add(cache.crops(picture, [view]), lambda: done.append(1))
    assert [view in cache for view in views] == [True, False, True]
    assert (len(done), cache.waiting) == (2, 1)
    cache.flush()
    assert views[1] in cache
    assert (len(done), cache.waiting) == (3, 0)
    assert cache[views[1]][0].mean_CHW.shape == (4, 6, 10)


def test_a_view_that_equals_one_that_waits_is_one_row(tiny_base: BaseModel) -> None:
    vae = RecordingVae(tiny_base.vae)
    frame = CropPolicy(seed=1, resolution=64, center_crop=False, random_flip=False)
    cache = LatentCache(vae=vae, vae_key="v", crop_policy=frame, rows_of=lambda _: 2)
    square = Image.fromarray(pixels_of(1))  # leaves a crop no choice
    views = frame.views("a" * 64)
    cache.add(cache.crops(square, views[:2]))
    assert cache.waiting == 1
    cache.add(cache.crops(square, views[2:]))
    cache.flush()
    assert len(cache) == 1
    assert all(view in cache for view in views)
    assert vae.batches == [2, 2]
