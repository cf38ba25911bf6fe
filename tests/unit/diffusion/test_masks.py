"""A mask lies on its picture wherever that is cut, and only what it shows is learned."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional

from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.draws.randomness import normal
from giornata.diffusion.encode import pixels
from giornata.diffusion.encode.captions import Embedding
from giornata.diffusion.encode.latents import CropPolicy, LatentCache
from giornata.diffusion.encode.pixels import CropPlacement
from giornata.diffusion.optim.objective import NoisyBatch, Objective

SHA = "a" * 64


def noise_alpha(height: int, width: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(1).integers(0, 256, (height, width), dtype=np.uint8))


@pytest.mark.parametrize("flip", [False, True])
def test_the_mask_is_cut_as_the_picture_and_averaged_by_area(flip: bool) -> None:
    """By torch's own resampling by area, which is what kohya's trainer shrinks masks with."""
    placement = CropPlacement(original_size=(96, 120), crop_top_left=(5, 9), target_size=(96, 64), flip=flip)
    alpha = noise_alpha(96, 120)
    seen = pixels.cut(Image.merge("RGB", [alpha] * 3), placement)[..., 0]
    levels_11HW = torch.from_numpy(seen.astype(np.float32) / 255)[None, None]
    expected = functional.interpolate(levels_11HW, size=(12, 8), mode="area")[0, 0]
    torch.testing.assert_close(pixels.latent_mask(alpha, placement, scale=8), expected)


def test_a_resized_mask_does_not_leave_its_area() -> None:
    """No ringing: where nothing was shown, nothing is."""
    alpha = Image.new("L", (256, 256), 0)
    alpha.paste(255, (0, 0, 128, 256))
    placement = CropPlacement(original_size=(256, 256), crop_top_left=(0, 0), target_size=(64, 64), flip=False)
    mask_HW = pixels.latent_mask(alpha, placement, scale=8)
    assert mask_HW[:, :4].min() == 1.0
    assert mask_HW[:, 4:].max() == 0.0


def test_alpha_is_kept_aside_and_colors_below_it_stay(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.new("RGBA", (8, 8), (200, 10, 20, 0)).save(path)
    assert pixels.decode(path).getpixel((0, 0)) == (255, 255, 255)
    colors, alpha = pixels.split_alpha(pixels.decode(path, keep_alpha=True))
    assert colors.getpixel((0, 0)) == (200, 10, 20)
    assert alpha is not None
    assert alpha.getextrema() == (0, 0)
    Image.new("RGB", (8, 8), (200, 10, 20)).save(path)
    assert pixels.split_alpha(pixels.decode(path, keep_alpha=True))[1] is None


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["png", "jpg", "tiff", "webp"])
def test_the_header_tells_the_size_that_decoding_gives(tmp_path: Path, suffix: str, orientation: int) -> None:
    """Buckets are chosen by the one, and filled with the other."""
    path, exif = tmp_path / f"a.{suffix}", Image.Exif()
    exif[0x0112] = orientation
    Image.new("RGB", (24, 16), "red").save(path, exif=exif)
    decoded = pixels.decode(path)
    assert pixels.upright_size(path) == (decoded.height, decoded.width)
    assert (decoded.width > decoded.height) == (orientation < 5)


class FixedUNet:
    """A UNet that gives a fixed answer."""

    dtype = torch.float32

    def __init__(self, answer: torch.Tensor) -> None:
        self.answer = answer

    def __call__(self, *_: Any, **__: Any) -> Any:
        return (self.answer,)


def noisy_batch() -> NoisyBatch:
    return NoisyBatch(
        latents_BCHW=normal(1, "latents", shape=(3, 4, 8, 6)),
        noise_BCHW=normal(1, "noise", shape=(3, 4, 8, 6)),
        timesteps_B=torch.tensor([10, 500, 990]),
        time_ids_B6=torch.zeros(3, 6),
    )


EMBEDDING = Embedding(prompt_BLD=torch.ones(3, 77, 8), pooled_BP=torch.ones(3, 3))


def each(objective: Objective, answer_BCHW: torch.Tensor, batch: NoisyBatch) -> torch.Tensor:
    return objective.each(FixedUNet(answer_BCHW), batch, EMBEDDING)


def test_the_loss_is_the_mean_over_the_masked_area(tiny_base: BaseModel) -> None:
    """sum(mask · distance) / (channels · sum(mask)), number by number."""
    objective = Objective(scheduler=tiny_base.noise_scheduler, prediction_type="epsilon", snr_gamma=5.0)
    batch, answer_BCHW = noisy_batch(), normal(2, "answer", shape=(3, 4, 8, 6))
    mask_B1HW = torch.rand(3, 1, 8, 6, generator=torch.Generator().manual_seed(1))
    expected = []
    for row in range(3):
        total = area = 0.0
        for y in range(8):
            for x in range(6):
                weight = float(mask_B1HW[row, 0, y, x])
                area += weight
                for channel in range(4):
                    miss = float(answer_BCHW[row, channel, y, x] - batch.noise_BCHW[row, channel, y, x])
                    total += weight * miss * miss
        expected.append(total / (4 * area) * float(objective.weight(batch.timesteps_B)[row]))
    found = each(objective, answer_BCHW, replace(batch, mask_B1HW=mask_B1HW))
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-5, atol=1e-6)


def test_masked_out_pixels_have_no_loss_or_gradient_and_full_mask_changes_nothing(tiny_base: BaseModel) -> None:
    objective = Objective(scheduler=tiny_base.noise_scheduler, prediction_type="epsilon")
    batch, answer_BCHW = noisy_batch(), normal(2, "answer", shape=(3, 4, 8, 6)).requires_grad_()
    whole = replace(batch, mask_B1HW=torch.ones(3, 1, 8, 6))
    torch.testing.assert_close(each(objective, answer_BCHW, whole), each(objective, answer_BCHW, batch))
    mask_B1HW = torch.zeros(3, 1, 8, 6)
    mask_B1HW[0, 0, 2, 3] = 1.0
    loss_B = each(objective, answer_BCHW, replace(batch, mask_B1HW=mask_B1HW))
    assert loss_B[1:].tolist() == [0.0, 0.0]
    loss_B.sum().backward()
    assert answer_BCHW.grad is not None
    assert answer_BCHW.grad.abs().sum(dim=1).nonzero().tolist() == [[0, 2, 3]]


def test_the_second_half_of_a_doubled_batch_is_looked_at_whole() -> None:
    batch = replace(noisy_batch(), mask_B1HW=torch.zeros(3, 1, 8, 6))
    twice = batch.twice()
    assert twice.mask_B1HW is not None
    assert (twice.mask_B1HW[:3].max(), twice.mask_B1HW[3:].min()) == (0.0, 1.0)
    assert torch.equal(twice.noise_BCHW[3:], batch.noise_BCHW)
    assert twice.timesteps_B.tolist() == [10, 500, 990] * 2


def test_masks_are_kept_beside_the_encodings(tiny_base: BaseModel) -> None:
    frame = CropPolicy(seed=3, resolution=64, center_crop=False, random_flip=True, masked=True)
    cache = LatentCache(vae=tiny_base.vae, vae_key="v", crop_policy=frame)
    image = Image.new("RGB", (64, 200), "red")
    plain = image.copy()
    image.putalpha(noise_alpha(200, 64))
    cache.add(cache.crops(image, frame.views(SHA)))
    cache.add(cache.crops(plain, frame.views("b" * 64)))
    for view in frame.views(SHA):
        entry, placement = cache[view]
        assert entry.mask_HW is not None
        assert torch.equal(entry.mask_HW, pixels.latent_mask(image.getchannel("A"), placement, scale=8))
        assert entry.mask_HW.shape == entry.mean_CHW.shape[1:]
    assert cache[frame.views("b" * 64)[0]][0].mask_HW is None


@pytest.mark.parametrize(("shown", "nothing"), [(None, True), ((0, 0, 64, 20), True), ((0, 90, 64, 110), False)])
def test_a_mask_that_no_crop_shows_is_noticed(
    tiny_base: BaseModel, shown: tuple[int, int, int, int] | None, nothing: bool
) -> None:
    frame = CropPolicy(seed=3, resolution=64, center_crop=True, random_flip=False, masked=True)
    cache = LatentCache(vae=tiny_base.vae, vae_key="v", crop_policy=frame)
    image = Image.new("RGBA", (64, 200), (9, 9, 9, 0))
    if shown is not None:
        image.paste((9, 9, 9, 255), shown)
    assert cache.shows_nothing(image, SHA) is nothing
    assert not cache.shows_nothing(image.convert("RGB"), SHA)
