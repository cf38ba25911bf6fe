"""Cuts from a picture the rectangle of pixels that the model sees. `decoding` decodes the picture itself.

Shapes: H, W height and width in pixels; C = 3, red, green, blue. Sizes and offsets are (y, x), as in SDXL's
micro-conditioning.
"""

from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image, ImageOps

from giornata.diffusion.encode.decoding import Undecodable, decode, upright_size

__all__ = [
    "CropPlacement",
    "Undecodable",
    "covering_size",
    "cut",
    "decode",
    "place",
    "resize",
    "to_model_range",
    "upright_size",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class CropPlacement:
    """The place of the rectangle on the resized (and, if `flip`, mirrored) picture: what SDXL is told about it.

    As in diffusers' DreamBooth script a picture is mirrored first and cropped afterwards, so `crop_top_left`
    is measured on the mirrored picture.
    """

    original_size: tuple[int, int]
    crop_top_left: tuple[int, int]
    target_size: tuple[int, int]
    flip: bool

    def time_ids(self) -> tuple[int, ...]:
        """Return the six numbers of SDXL's micro-conditioning, in the order the UNet was trained with."""
        return (*self.original_size, *self.crop_top_left, *self.target_size)


def covering_size(size: tuple[int, int], target_size: tuple[int, int]) -> tuple[int, int]:
    """Return (width, height) of a picture of `size` (width, height) that is to cover `target_size` (height, width)
    closely. One side fits, the other keeps the proportion, cut down to whole pixels."""
    (width, height), (target_height, target_width) = size, target_size
    if target_width * height >= target_height * width:
        return target_width, max(target_height, height * target_width // width)
    return max(target_width, width * target_height // height), target_height


def resize(image: Image.Image, target_size: tuple[int, int]) -> Image.Image:
    """Resize the picture to the smallest that covers `target_size` (height, width); Lanczos."""
    size = covering_size(image.size, target_size)
    return image if size == image.size else image.resize(size, Image.Resampling.LANCZOS)


def place(
    *,
    original: tuple[int, int],
    resized: tuple[int, int],
    target_size: tuple[int, int],
    at: tuple[float, float] | None,
    flip: bool,
) -> CropPlacement:
    """Place the crop on the picture. Sizes are (height, width); `at` is (y, x) in [0, 1) of the free way, None for
    the middle."""
    free = [side - target for side, target in zip(resized, target_size, strict=True)]
    if at is None:
        top, left = (round(way / 2) for way in free)
    else:
        top, left = (int(fraction * (way + 1)) for fraction, way in zip(at, free, strict=True))
    return CropPlacement(original_size=original, crop_top_left=(top, left), target_size=target_size, flip=flip)


def cut(resized: Image.Image, placement: CropPlacement) -> np.ndarray:
    """Cut the rectangle out: pixels_HWC, uint8."""
    image = ImageOps.mirror(resized) if placement.flip else resized
    (top, left), (height, width) = placement.crop_top_left, placement.target_size
    return np.asarray(image.crop((left, top, left + width, top + height)))


def to_model_range(pixels_HWC: np.ndarray) -> torch.Tensor:
    """Scale uint8 0 … 255 to pixels_1CHW, float32, -1 … 1."""
    pixels_CHW = torch.from_numpy(pixels_HWC.copy()).permute(2, 0, 1)
    return pixels_CHW.to(torch.float32).div(127.5).sub(1.0).unsqueeze(0).contiguous()


# ---- masks
#
# Shapes: H, W of the latents. A mask is a picture's alpha channel: 255 is learned, 0 is not, and what lies between
# counts in proportion.


def split_alpha(image: Image.Image) -> tuple[Image.Image, Image.Image | None]:
    """Return the colors, also of what is transparent, and the alpha channel if there is one."""
    if image.mode != "RGBA":
        return image, None
    return image.convert("RGB"), image.getchannel("A")


def latent_mask(alpha: Image.Image, placement: CropPlacement, *, scale: int) -> torch.Tensor:
    """Return mask_HW in 0 … 1, float32, of the area that the placement cuts out; `scale` pixels are one latent.

    Resized by area to the size that the picture was resized to, mirrored and cropped as it, and averaged over each
    square of scale x scale pixels.
    """
    size = covering_size(alpha.size, placement.target_size)
    resized = alpha if size == alpha.size else alpha.resize(size, Image.Resampling.BOX)
    image = ImageOps.mirror(resized) if placement.flip else resized
    (top, left), (height, width) = placement.crop_top_left, placement.target_size
    levels = np.asarray(image.crop((left, top, left + width, top + height)), dtype=np.float32) / np.float32(255.0)
    blocks = levels.reshape(height // scale, scale, width // scale, scale)
    return torch.from_numpy(blocks.mean(axis=(1, 3), dtype=np.float32))
