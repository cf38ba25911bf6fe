"""Colours and transparency as viewers show them. Loads PIL and nothing heavier."""

import io

from PIL import Image, ImageCms

_SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))
_ALPHA_MODES = {"RGBA", "LA", "PA", "RGBa", "La"}


def in_srgb(image: Image.Image) -> Image.Image:
    """Colours converted by the embedded profile. A profile that is broken or does not fit is left out of account,
    as viewers do."""
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
    """Mode RGB; what is transparent shows white."""
    if not has_alpha(image):
        return image.convert("RGB")
    layer = image.convert("RGBA")
    white = Image.new("RGBA", layer.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, layer).convert("RGB")


def has_alpha(image: Image.Image) -> bool:
    """Whether parts of it may be transparent."""
    return image.mode in _ALPHA_MODES or "transparency" in image.info
