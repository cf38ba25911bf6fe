"""Converts a picture to what a viewer shows: HEIC and HEIF through Pillow, colors in sRGB, transparency on white.

Importing this module makes `PIL.Image.open` read HEIC and HEIF.

libheif turns a picture by its own rule (irot, imir) while it decodes, and pillow-heif clears the EXIF orientation, so
that no picture is turned twice. Channels of 10 and 12 bits arrive with 8. AVIF is read by Pillow itself.
"""

import io
from typing import Any

import pillow_heif
from PIL import Image, ImageCms

# One thread: malloc sets address space aside for each, and the inspecting process has little. What lies beside the
# picture (thumbnails, depth, gain maps) is never used.
pillow_heif.register_heif_opener(decode_threads=1, thumbnails=False, depth_images=False, aux_images=False)

HEIF = "HEIF"
"""Pillow's name of the format."""
HDR = {16: "PQ", 18: "HLG"}  # transfer characteristics, ITU-T H.273, table 3
SRGB_PRIMARIES = {1, 2, 5, 6, 7}  # H.273, table 2: BT.709, unspecified, and the near ones of standard television


def heif_notes(info: dict[Any, Any]) -> list[str]:
    """Return notes on how a HEIF picture with this `info` will be treated, as far as other formats have no such
    thing."""
    notes = []
    if info.get("original_orientation") in range(2, 9):
        notes.append("turned as its EXIF orientation says")
    depth = info.get("bit_depth", 8)
    if depth > 8:
        notes.append(f"{depth} bits per channel, trained with 8")
    nclx = {} if info.get("icc_profile") else info.get("nclx_profile") or {}
    transfer, primaries = nclx.get("transfer_characteristics"), nclx.get("color_primaries", 2)
    if transfer in HDR:
        notes.append(f"its HDR brightness ({HDR[transfer]}) is not converted, and looks flat; export it as SDR")
    elif primaries not in SRGB_PRIMARIES:
        notes.append(f"has no color profile; its colors (primaries {primaries} of H.273) are taken for sRGB")
    return notes


# ---- colors and transparency

_SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))
_ALPHA_MODES = {"RGBA", "LA", "PA", "RGBa", "La"}


def in_srgb(image: Image.Image) -> Image.Image:
    """Convert colors by the embedded profile. A profile that is broken or does not fit is ignored, as viewers do."""
    profile = image.info.get("icc_profile")
    if not profile:
        return image
    alpha = image.convert("RGBA").getchannel("A") if has_alpha(image) else None
    flat = image.convert("RGB") if image.mode in _ALPHA_MODES | {"P"} else image
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        shown = ImageCms.profileToProfile(flat, source, _SRGB, outputMode="RGB")
    except (ImageCms.PyCMSError, OSError, ValueError):
        return image
    if shown is None:
        return image
    if alpha is not None:
        shown.putalpha(alpha)
    return shown


def over_white(image: Image.Image) -> Image.Image:
    """Return the picture in mode RGB; transparent parts show white."""
    if not has_alpha(image):
        return image.convert("RGB")
    layer = image.convert("RGBA")
    white = Image.new("RGBA", layer.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, layer).convert("RGB")


def has_alpha(image: Image.Image) -> bool:
    """Return True when parts of the picture may be transparent."""
    return image.mode in _ALPHA_MODES or "transparency" in image.info
