"""Pictures are decoded in half precision where that goes well, and else as the VAE's own precision does it."""

import copy
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL
from PIL import Image
from tests.fixtures.single_file import write_single_file
from tests.unit.diffusion.test_models import StubHub

from giornata.diffusion.base.models import BaseModel, ModelLocation, load_model
from giornata.diffusion.sampling.decoded import LARGE_SIDE_PX, image_of, let_large_be_tiled, pixels_of
from giornata.diffusion.sampling.picture_decoder import PictureDecoder
from giornata.diffusion.shapes.pictures import SIZE_PX, draw_shape, grid
from giornata.diffusion.shapes.shipped import WEIGHTS
from giornata.diffusion.tiny.tiny_model import tiny_pipeline

HALF = torch.float16


def base_in_half(base: BaseModel, *, half_vae: bool = True) -> BaseModel:
    """The base as a GPU has it: in half precision, but for the VAE."""
    return replace(base, vae=copy.deepcopy(base.vae), dtype=HALF, half_vae=half_vae)


def overflowing(base: BaseModel) -> BaseModel:
    """The same with activations that half precision cannot hold; a norm makes the picture of them what it was."""
    base.vae.decoder.conv_in.weight.data *= 1e7
    return base


def latents(*, side: int = 8) -> torch.Tensor:
    return torch.randn((1, 4, side, side), generator=torch.Generator().manual_seed(0))


def by_the_vae(base: BaseModel, latents_1Chw: torch.Tensor) -> bytes:
    with torch.no_grad():
        return image_of(base.vae.decode(latents_1Chw / base.vae.config.scaling_factor).sample).tobytes()


class CountedDecoder:
    """Counts what the VAE's own decoder decodes."""

    def __init__(self, base: BaseModel) -> None:
        self.decoded = 0
        base.vae.decoder.register_forward_hook(self._count)

    def _count(self, module: torch.nn.Module, *_: object) -> None:
        self.decoded += next(module.parameters()).dtype == torch.float32


def test_a_vae_that_nothing_is_said_of_decodes_in_half_precision(tiny_base: BaseModel) -> None:
    base = base_in_half(tiny_base)
    exact = by_the_vae(base, latents())
    counted = CountedDecoder(base)
    decoder = PictureDecoder(base)

    drawn = decoder.picture(latents())

    assert counted.decoded == 0
    far = np.abs(np.asarray(drawn).astype(int).ravel() - np.frombuffer(exact, np.uint8).astype(int))
    assert far.max() <= 2
    assert base.vae.dtype == torch.float32


def test_a_picture_that_overflows_has_the_bytes_of_the_vaes_own_precision(tiny_base: BaseModel) -> None:
    base = overflowing(base_in_half(tiny_base))
    exact = by_the_vae(base, latents())
    counted = CountedDecoder(base)
    assert PictureDecoder(base).picture(latents()).tobytes() == exact
    assert counted.decoded == 1


def test_pictures_decoded_before_change_no_bytes(tiny_base: BaseModel) -> None:
    base = base_in_half(tiny_base)
    alone = PictureDecoder(base).picture(latents()).tobytes()
    decoder = PictureDecoder(base)
    decoder.picture(latents() * 1e5)
    assert decoder.picture(latents()).tobytes() == alone


@pytest.mark.parametrize("half_vae", [True, False])
def test_a_base_in_full_precision_and_a_vae_that_is_said_to_overflow_decode_as_ever(
    tiny_base: BaseModel, half_vae: bool
) -> None:
    base = replace(tiny_base, half_vae=True) if half_vae else base_in_half(tiny_base, half_vae=False)
    assert PictureDecoder(base).picture(latents()).tobytes() == by_the_vae(base, latents())


def test_tiles_hold_in_half_precision_too(tiny_base: BaseModel) -> None:
    base = base_in_half(tiny_base)
    let_large_be_tiled(base.vae, side_px=64)
    shapes = []
    base.vae.decoder.conv_in.register_forward_hook(lambda _, given, __: shapes.append(tuple(given[0].shape[2:])))
    PictureDecoder(base).picture(latents(side=12))
    assert max(max(shape) for shape in shapes) == 8


def test_files_and_sd15_are_tried_in_half_and_a_config_that_speaks_is_heeded(
    tiny_folder: Path, tiny_sd15_folder: Path, tmp_path: Path
) -> None:
    layouts = tmp_path / "layouts"
    pipeline = tiny_pipeline(second_hidden=48)
    pipeline.save_pretrained(layouts / "sdxl")
    file = write_single_file(tmp_path / "model.safetensors", pipeline)

    def loaded(place: Path) -> BaseModel:
        hub = StubHub(AssertionError("nobody should ask the hub"))
        location = ModelLocation(name=str(place), key="k")
        return load_model(location, device="cpu", dtype=HALF, hub=hub, layouts=layouts)

    assert [loaded(place).half_vae for place in (file, tiny_sd15_folder, tiny_folder)] == [True, True, False]


def strip_of_shapes(width: int) -> Image.Image:
    """Shapes side by side."""
    strip, shapes = Image.new("RGB", (width, SIZE_PX)), grid()
    for place in range(width // SIZE_PX):
        strip.paste(draw_shape(shapes[7 * place], random.Random(place)), (place * SIZE_PX, 0))
    return strip


def decoded_whole_and_in_tiles(base: BaseModel, width: int) -> tuple[np.ndarray, np.ndarray, int]:
    """A strip of shapes through the VAE of the drawing model: decoded whole, in tiles as pictures are, and the number
    of tiles."""
    vae = AutoencoderKL.from_pretrained(WEIGHTS, subfolder="vae", torch_dtype=torch.float32).eval()
    decoder = PictureDecoder(replace(base, vae=vae))
    with torch.no_grad():
        latents_1Chw = vae.encode(pixels_of(strip_of_shapes(width), width=width, height=SIZE_PX)).latent_dist.mean
    scaled = latents_1Chw * vae.config.scaling_factor
    whole = np.asarray(decoder.picture(scaled)).astype(int)
    let_large_be_tiled(vae)
    tiles: list[int] = []
    vae.decoder.register_forward_hook(lambda *_: tiles.append(1))
    return whole, np.asarray(decoder.picture(scaled)).astype(int), len(tiles)


def test_a_large_picture_in_tiles_is_close_to_the_whole_and_has_no_seam(tiny_base: BaseModel) -> None:
    """Norms and attention of a tile see the tile alone, so tiles differ a little everywhere. Without their overlap
    the seams differ by more than 100 levels of 255."""
    whole, tiled, tiles = decoded_whole_and_in_tiles(tiny_base, LARGE_SIDE_PX + SIZE_PX)
    assert tiles == 2
    assert tiled.shape == whole.shape
    far = np.abs(tiled - whole)
    assert far.mean() <= 2
    assert far.max() <= 16


def test_a_picture_of_the_largest_side_is_decoded_whole(tiny_base: BaseModel) -> None:
    whole, tiled, tiles = decoded_whole_and_in_tiles(tiny_base, LARGE_SIDE_PX)
    assert tiles == 1
    assert (tiled == whole).all()
