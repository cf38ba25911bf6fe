"""Cached encodings give the very latents that encoding at every step would give."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from giornata.diffusion.base.models import BaseModel
from giornata.diffusion.draws import randomness
from giornata.diffusion.encode import latents, pixels
from giornata.diffusion.encode.latents import CROP_VARIANTS, CropPolicy, LatentCache
from giornata.protocol.specs import TrainSpec

SHA = "a" * 64


def picture(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8))


def crop_policy(*, center_crop: bool = False, random_flip: bool = True, seed: int = 3) -> CropPolicy:
    return CropPolicy(seed=seed, resolution=64, center_crop=center_crop, random_flip=random_flip)


def test_the_views_are_all_that_a_draw_can_give() -> None:
    for center_crop in (True, False):
        for random_flip in (True, False):
            frame = crop_policy(center_crop=center_crop, random_flip=random_flip)
            drawn = {frame.draw(SHA, "instance", step, 0, 0) for step in range(200)}
            assert drawn == set(frame.views(SHA))
    assert len(crop_policy().views(SHA)) == 2 * CROP_VARIANTS


def test_crops_follow_the_seed_and_the_picture() -> None:
    def tops(seed: int, sha256: str) -> list[int]:
        frame = crop_policy(seed=seed)
        places = [frame.place(view, original=(900, 64), resized=(900, 64)) for view in frame.views(sha256)]
        return [place.crop_top_left[0] for place in places]

    assert tops(3, SHA) == tops(3, SHA)
    assert len(set(tops(3, SHA))) == CROP_VARIANTS  # mirroring does not move the crop
    assert tops(3, SHA) != tops(4, SHA)
    assert tops(3, SHA) != tops(3, "b" * 64)


def test_a_picture_of_a_lesser_resolution_has_buckets_of_its_own() -> None:
    spec = TrainSpec(
        pretrained_model_name_or_path="a/base",
        dataset="ds_0",
        instance_prompt="a toy",
        resolution=1024,
        enable_bucket=True,
    )
    frame = CropPolicy.of(spec, seed=3)
    assert (frame.target((3000, 4000)), frame.target((3000, 4000), 512)) == ((896, 1152), (448, 576))
    assert frame.draw(SHA, "instance", 0, resolution=512) in frame.views(SHA, 512)
    assert frame.views(SHA, 512)[0] != frame.views(SHA)[0]
    assert frame.views(SHA, 2048) == frame.views(SHA, 1024) == frame.views(SHA), "the job's is the most"
    square = crop_policy()
    assert square.views(SHA, 32) == square.views(SHA), "all are cut to one size without buckets"


def test_latent_cache_holds_one_picture_at_two_resolutions(tiny_base: BaseModel) -> None:
    frame = CropPolicy(
        seed=1,
        resolution=64,
        center_crop=True,
        random_flip=False,
        buckets=((64, 64),),
        sides=(16, 16, 64),
    )
    cache = LatentCache(vae=tiny_base.vae, vae_key="vae", crop_policy=frame)
    small, large = frame.views(SHA, 32)[0], frame.views(SHA)[0]
    cache.add(cache.crops(picture(90, 90), [small, large]))
    cache.flush()
    scale = 64 // cache[large][0].mean_CHW.shape[-1]
    assert tuple(cache[small][0].mean_CHW.shape[1:]) == (32 // scale, 32 // scale)
    assert (cache[small][1].target_size, cache[large][1].target_size) == ((32, 32), (64, 64))


class CountingVae:
    """A VAE that counts what it encodes."""

    def __init__(self, vae: Any) -> None:
        self.vae, self.device, self.dtype, self.encoded = vae, vae.device, vae.dtype, 0

    def encode(self, pixels_BCHW: torch.Tensor) -> Any:
        self.encoded += len(pixels_BCHW)
        return self.vae.encode(pixels_BCHW)


def test_equal_views_share_one_entry(tiny_base: BaseModel) -> None:
    """A square picture leaves a crop no choice: four crops are one encoding."""
    frame = crop_policy(random_flip=False)
    vae = CountingVae(tiny_base.vae)
    cache = LatentCache(vae=vae, vae_key="v", crop_policy=frame)
    ticks: list[int] = []
    cache.add(cache.crops(picture(80, 80), frame.views(SHA)), lambda: ticks.append(1))
    assert len(cache) == 1
    assert len(ticks) == CROP_VARIANTS
    cache.add(cache.crops(picture(80, 200), frame.views("b" * 64)))
    assert len(cache) == vae.encoded == 1 + CROP_VARIANTS


def test_cached_latents_equal_vae_posterior_sample(tiny_base: BaseModel) -> None:
    frame = crop_policy(center_crop=True, random_flip=True)
    cache = LatentCache(vae=tiny_base.vae, vae_key="v", crop_policy=frame)
    image = picture(64, 100)
    cache.add(cache.crops(image, frame.views(SHA)))
    noise_CHW = randomness.normal(1, "posterior", 0, shape=(4, 8, 8))
    drawn = []
    for view in frame.views(SHA):
        entry, placement = cache[view]
        with torch.no_grad():
            posterior = tiny_base.vae.encode(pixels.to_model_range(pixels.cut(image, placement))).latent_dist
        expected = (posterior.mean[0] + posterior.std[0] * noise_CHW) * tiny_base.vae.config.scaling_factor
        drawn.append(latents.sample(entry, noise_CHW, tiny_base.vae.config))
        assert torch.equal(drawn[-1], expected)
        assert placement.original_size == (100, 64)
    assert not torch.equal(drawn[0], drawn[1])  # the mirrored one


def test_a_vae_that_states_its_latents_mean_and_deviation(tiny_base: BaseModel) -> None:
    class Config:
        scaling_factor, latents_mean, latents_std = 0.5, (1.0, 2.0, 3.0, 4.0), (2.0, 2.0, 2.0, 4.0)

    entry = latents.LatentEntry(mean_CHW=torch.full((4, 1, 1), 5.0), std_CHW=torch.zeros(4, 1, 1))
    drawn = latents.sample(entry, torch.zeros(4, 1, 1), Config)
    assert drawn.flatten().tolist() == [1.0, 0.75, 0.5, 0.125]


def test_ticks_may_stop_the_caching(tiny_base: BaseModel) -> None:
    class Enough(Exception):
        pass

    def stop() -> None:
        raise Enough

    frame = crop_policy()
    with pytest.raises(Enough):
        cache = LatentCache(vae=tiny_base.vae, vae_key="v", crop_policy=frame)
        cache.add(cache.crops(picture(64, 64), frame.views(SHA)), stop)
