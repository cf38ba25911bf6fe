"""Decodes a picture file, or its bytes, to the picture as a viewer shows it. Loads PIL, pillow-heif and numpy,
nothing heavier."""

import io
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from giornata.pictures.inspector.display import has_alpha, in_srgb, over_white  # makes Pillow read HEIC

_ORIENTATION_TAG = 0x0112
_PNG = b"\x89PNG\r\n\x1a\n"
_LYING = {5, 6, 7, 8}  # values of the tag that swap height and width
_NEEDS_A_PROGRAM = {"EPS"}  # Pillow hands these to Ghostscript, which is no place for a stranger's file
# Pillow's decoders raise what they like on damaged files.
_ANYTHING = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    struct.error,
)
_DEEP_MODES = {"I", "F", "I;16", "I;16L", "I;16B", "I;16N"}


class Undecodable(ValueError):
    """The file is not a picture that can be shown. The message says why, in words for its owner."""


class NotAPicture(Undecodable):
    """The bytes are in no picture format that can be read."""


class TooManyPixels(Undecodable):
    """The picture has more pixels than Pillow decodes: 179 million."""


def decode(source: Path | bytes, *, keep_alpha: bool = False) -> Image.Image:
    """Decode the picture as a viewer shows it: upright, over white, in sRGB; mode RGB, 8 bits. Raises Undecodable.

    With `keep_alpha` a picture that has transparency stays as it is, in mode RGBA.
    """
    with _readable(), Image.open(_file(source)) as opened:
        if opened.format in _NEEDS_A_PROGRAM:
            raise NotAPicture(f"is {opened.format}, a program that draws a picture")
        upright = ImageOps.exif_transpose(opened)
        upright.load()
        shown = in_srgb(_eight_bits(upright))
        return shown.convert("RGBA") if keep_alpha and has_alpha(shown) else over_white(shown)


def upright_size(source: Path | bytes) -> tuple[int, int]:
    """Return (height, width) of the picture that `decode` gives, from the header alone where possible. Raises
    Undecodable."""
    with _readable(), Image.open(_file(source)) as opened:
        if opened.format == "TIFF":  # Pillow turns these by itself while it reads them
            image = ImageOps.exif_transpose(opened)
            return image.height, image.width
        turned = opened.getexif().get(_ORIENTATION_TAG) in _LYING
        width, height = opened.size
        return (width, height) if turned else (height, width)


def stored_mode(source: Path | bytes) -> str:
    """Return Pillow's mode of the file's content ("RGB", "CMYK", "P", "I;16"), from the header. Raises
    Undecodable."""
    with _readable(), Image.open(_file(source)) as opened:
        return opened.mode


def check_png(content: bytes) -> None:
    """Raise Undecodable for a PNG with a wrong checksum. Pillow shows such a picture with wrong pixels."""
    if content.startswith(_PNG):
        with _readable(), Image.open(io.BytesIO(content)) as opened:
            opened.verify()


def _file(source: Path | bytes) -> Path | io.BytesIO:
    return source if isinstance(source, Path) else io.BytesIO(source)


@contextmanager
def _readable() -> Iterator[None]:
    """Turn every error that Pillow raises into Undecodable."""
    try:
        yield
    except Undecodable:
        raise
    except Image.UnidentifiedImageError:
        raise NotAPicture("is not a picture in a format that can be read") from None
    except Image.DecompressionBombError:
        raise TooManyPixels("has more pixels than any picture needs") from None
    except _ANYTHING as error:
        raise Undecodable(f"is damaged: {str(error).strip()}") from error


def _eight_bits(image: Image.Image) -> Image.Image:
    """Convert sixteen bits (and what pretends to be more) to eight; leave others as they are."""
    if image.mode not in _DEEP_MODES:
        return image
    values = np.asarray(image, dtype=np.float64)
    if not np.isfinite(values).all():
        raise Undecodable("has pixels that are not finite numbers (NaN or infinite)")
    if image.mode == "F" and values.max(initial=0.0) <= 1.0:
        values = values * 65535.0
    elif not image.mode.startswith("I;16") and values.max(initial=0.0) <= 255.0:
        values = values * 257.0
    shallow = Image.fromarray((np.clip(values, 0.0, 65535.0) / 257.0).round().astype(np.uint8), mode="L")
    shallow.info = {key: value for key, value in image.info.items() if key == "icc_profile"}
    return shallow
