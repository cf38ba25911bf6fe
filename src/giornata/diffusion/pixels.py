"""From a picture file to the rectangle of pixels that the model sees.

Shapes: H, W height and width in pixels; C = 3, red, green, blue. Sizes and offsets are (y, x), as in SDXL's
micro-conditioning.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from PIL import Image, ImageOps

from giornata.diffusion.colours import has_alpha, in_srgb, over_white

_ORIENTATION_TAG = 0x0112
_LYING = {5, 6, 7, 8}  # values of the tag that swap height and width
_DEEP_MODES = {"I", "F", "I;16", "I;16L", "I;16B", "I;16N"}


class Undecodable(ValueError):
    """The file is not a picture that can be shown. The message says why, in words for its owner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where the rectangle lies on the resized (and, if `flip`, mirrored) picture: what SDXL is told about it.

    As in diffusers' DreamBooth script a picture is mirrored first and cropped afterwards, so `crop_top_left`
    is measured on the mirrored picture.
    """

    original_size: tuple[int, int]
    crop_top_left: tuple[int, int]
    target_size: tuple[int, int]
    flip: bool

    def time_ids(self) -> tuple[int, ...]:
        """The six numbers of SDXL's micro-conditioning, in the order the UNet was trained with."""
        return (*self.original_size, *self.crop_top_left, *self.target_size)


def decode(path: Path | BinaryIO, *, keep_alpha: bool = False) -> Image.Image:
    """The picture as a viewer shows it: upright, over white, in sRGB; mode RGB, 8 bits. Raises Undecodable.

    `path` may be an open file instead, such as bytes in memory. With `keep_alpha` a picture that has transparency
    stays as it is, in mode RGBA.
    """
    with _readable(), Image.open(path) as opened:
        upright = ImageOps.exif_transpose(opened)
        upright.load()
        shown = in_srgb(_eight_bits(upright))
        return shown.convert("RGBA") if keep_alpha and has_alpha(shown) else over_white(shown)


def upright_size(path: Path) -> tuple[int, int]:
    """(height, width) of what `decode` gives, from the header alone where that tells. Raises Undecodable."""
    with _readable(), Image.open(path) as opened:
        if opened.format == "TIFF":  # Pillow turns these by itself while it reads them
            image = ImageOps.exif_transpose(opened)
            return image.height, image.width
        turned = opened.getexif().get(_ORIENTATION_TAG) in _LYING
        width, height = opened.size
        return (width, height) if turned else (height, width)


@contextmanager
def _readable() -> Iterator[None]:
    """Turn whatever Pillow raises into Undecodable."""
    try:
        yield
    except Image.UnidentifiedImageError:
        raise Undecodable("is not a picture in a format that can be read") from None
    except Image.DecompressionBombError:
        raise Undecodable("has more pixels than any picture needs") from None
    except (OSError, ValueError, SyntaxError, IndexError, EOFError, KeyError, TypeError, ZeroDivisionError) as error:
        # Pillow's decoders raise what they like on damaged files.
        raise Undecodable(f"is damaged: {error}") from error


def covering_size(size: tuple[int, int], target_size: tuple[int, int]) -> tuple[int, int]:
    """(width, height), of a picture of `size` (width, height) that is to cover `target_size` (height, width) closely:
    one side fits, the other keeps the proportion, cut down to whole pixels."""
    (width, height), (target_height, target_width) = size, target_size
    if target_width * height >= target_height * width:
        return target_width, max(target_height, height * target_width // width)
    return max(target_width, width * target_height // height), target_height


def resize(image: Image.Image, target_size: tuple[int, int]) -> Image.Image:
    """The picture, as small as covers `target_size` (height, width); Lanczos."""
    size = covering_size(image.size, target_size)
    return image if size == image.size else image.resize(size, Image.Resampling.LANCZOS)


def place(
    *,
    original: tuple[int, int],
    resized: tuple[int, int],
    target_size: tuple[int, int],
    at: tuple[float, float] | None,
    flip: bool,
) -> Placement:
    """Where to crop. Sizes are (height, width); `at` is (y, x) in [0, 1) of the free way, None for the middle."""
    free = [side - target for side, target in zip(resized, target_size, strict=True)]
    if at is None:
        top, left = (round(way / 2) for way in free)
    else:
        top, left = (int(fraction * (way + 1)) for fraction, way in zip(at, free, strict=True))
    return Placement(original_size=original, crop_top_left=(top, left), target_size=target_size, flip=flip)


def cut(resized: Image.Image, placement: Placement) -> np.ndarray:
    """The rectangle itself: pixels_HWC, uint8."""
    image = ImageOps.mirror(resized) if placement.flip else resized
    (top, left), (height, width) = placement.crop_top_left, placement.target_size
    return np.asarray(image.crop((left, top, left + width, top + height)))


def to_model_range(pixels_HWC: np.ndarray) -> torch.Tensor:
    """uint8 0 … 255 to pixels_1CHW, float32, -1 … 1."""
    pixels_CHW = torch.from_numpy(pixels_HWC.copy()).permute(2, 0, 1)
    return pixels_CHW.to(torch.float32).div(127.5).sub(1.0).unsqueeze(0).contiguous()


def _eight_bits(image: Image.Image) -> Image.Image:
    """Sixteen bits (and what pretends to be more) to eight; others as they are."""
    if image.mode not in _DEEP_MODES:
        return image
    values = np.asarray(image, dtype=np.float64)
    if image.mode == "F" and values.max(initial=0.0) <= 1.0:
        values = values * 65535.0
    elif not image.mode.startswith("I;16") and values.max(initial=0.0) <= 255.0:
        values = values * 257.0
    shallow = Image.fromarray((np.clip(values, 0.0, 65535.0) / 257.0).round().astype(np.uint8), mode="L")
    shallow.info = {key: value for key, value in image.info.items() if key == "icc_profile"}
    return shallow
