"""Write a drawn picture as PNG, JPEG or WebP, with its settings inside. Equal pictures are equal files."""

from collections.abc import Mapping
from io import BytesIO
from types import MappingProxyType

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from giornata.protocol.generation.metadata import A1111, COMFYUI_PROMPT, COMFYUI_WORKFLOW, OURS, metadata_of
from giornata.protocol.generation.picture import ImageFormat, PictureParams
from giornata.protocol.generation.preprocess import LeasedParams
from giornata.protocol.generation.texts.image_text import (
    EXIF_FOLDER,
    IMAGE_DESCRIPTION,
    MAKE,
    MODEL,
    UNICODE_CODE,
    USER_COMMENT,
)

MEDIA_TYPES: Mapping[ImageFormat, str] = MappingProxyType(
    {ImageFormat.PNG: "image/png", ImageFormat.JPEG: "image/jpeg", ImageFormat.WEBP: "image/webp"}
)
ENDINGS: Mapping[ImageFormat, str] = MappingProxyType(
    {ImageFormat.PNG: ".png", ImageFormat.JPEG: ".jpg", ImageFormat.WEBP: ".webp"}
)
MAX_EXIF_BYTES = 65_000
"""A segment of a JPEG file has 64 KiB with its head."""
EXIF_TAGS: Mapping[str, int] = MappingProxyType(
    {OURS: IMAGE_DESCRIPTION, COMFYUI_WORKFLOW: MAKE, COMFYUI_PROMPT: MODEL}
)
DROPPED_FIRST = (COMFYUI_WORKFLOW, COMFYUI_PROMPT, A1111)


def picture_bytes(image: Image.Image, params: LeasedParams, *, made_with: Mapping[str, str]) -> bytes:
    """Return the file of a picture in the format that its settings name. An annotation has no settings inside."""
    texts = metadata_of(params, made_with=made_with) if isinstance(params, PictureParams) else {}
    out = BytesIO()
    rgb = image.convert("RGB")
    match params.image_format:
        case ImageFormat.PNG:
            rgb.save(out, "PNG", pnginfo=_png_info(texts))
        case ImageFormat.JPEG:
            rgb.save(out, "JPEG", quality=params.quality, exif=_exif(texts))
        case ImageFormat.WEBP:
            rgb.save(out, "WEBP", quality=params.quality, exif=_exif(texts))
    return out.getvalue()


def _png_info(texts: Mapping[str, str]) -> PngInfo:
    info = PngInfo()
    for name, text in texts.items():
        info.add_text(name, text)
    return info


def _exif(texts: Mapping[str, str]) -> bytes:
    """Return the EXIF of a file. The texts that a file can best do without are left out where all are too long."""
    kept = dict(texts)
    written = _exif_of(kept)
    for name in DROPPED_FIRST:
        if len(written) <= MAX_EXIF_BYTES:
            break
        kept.pop(name, None)
        written = _exif_of(kept)
    return written


def _exif_of(texts: Mapping[str, str]) -> bytes:
    if not texts:
        return b""
    exif = Image.Exif()
    for name, tag in EXIF_TAGS.items():
        if name in texts:
            exif[tag] = f"{name}:{texts[name]}"
    if A1111 in texts:
        exif.get_ifd(EXIF_FOLDER)[USER_COMMENT] = UNICODE_CODE + texts[A1111].encode("utf-16-be")
    return exif.tobytes()
