"""What there is to say about one picture file before it is trained on: faults, and notes of how it will be treated.

Only PIL, pillow-heif and the standard library are loaded. The bytes are a stranger's: see giornata.diffusion.inspect.
"""

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image, ImageCms, UnidentifiedImageError

from giornata.diffusion import heif
from giornata.diffusion.signatures import SAVE_ANEW, jpeg_has_end, webp_size, what_instead

ACCEPTED = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "AVIF", "HEIF")
ONE_FRAME = "export the one frame that you want as PNG or JPEG"
ORIENTATION_TAG = 0x0112
MESSAGE_CHARS = 200

MODE_NOTES = {
    "1": "black and white, trained as a viewer shows it",
    "L": "grayscale, trained as a viewer shows it",
    "LA": "grayscale, trained as a viewer shows it",
    "P": "palette colours, trained as a viewer shows them",
    "PA": "palette colours, trained as a viewer shows them",
    "CMYK": "CMYK colours, converted to RGB",
    "LAB": "CIELAB colours, converted to RGB",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What is still a picture to train on. Sides in pixels; `max_aspect` is the longer side over the shorter."""

    max_pixels: int = 64_000_000
    max_side_px: int = 16_384
    min_side_px: int = 64
    max_aspect: float = 8.0
    max_file_bytes: int = 50 * 2**20


@dataclass(slots=True, kw_only=True)
class Look:
    """What was found out about one picture so far."""

    name: str
    format: str | None = None
    width: int | None = None
    height: int | None = None
    faults: list[dict[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def fault(self, message: str, hint: str = "") -> None:
        self.faults.append({"where": self.name, "message": message, "hint": hint})

    def line(self) -> str:
        keys = ("name", "format", "width", "height", "faults", "notes")
        return json.dumps({key: getattr(self, key) for key in keys})


def examine(name: str, path: Path, bounds: Bounds) -> Look:
    """Everything there is to say about one file. Never raises for anything that its bytes can do."""
    look = Look(name=name)
    data = _read(path, look, bounds)
    if data is None:
        return look
    try:
        with _damaged_metadata_as_note(look):
            if _examine_header(data, look, bounds):
                _examine_pixels(data, look)
    except MemoryError:
        look.fault("takes more memory to decode than is allowed", "save it smaller, as PNG or JPEG")
    except Exception as error:  # noqa: BLE001 - crafted bytes make decoders raise nearly any type
        look.fault(f"is damaged or cut off: {_short(error)}", SAVE_ANEW)
    return look


def _read(path: Path, look: Look, bounds: Bounds) -> bytes | None:
    """The file's bytes; None, and a fault, when there are none, too many, or no file."""
    try:
        if not path.is_file():
            look.fault("is not a file" if path.exists() else "is not there", "check the path")
            return None
        with path.open("rb") as file:
            data = file.read(bounds.max_file_bytes + 1)
    except OSError as error:
        look.fault(f"cannot be read: {error.strerror}", "check its permissions")
        return None
    if len(data) > bounds.max_file_bytes:
        look.fault(f"is larger than {bounds.max_file_bytes / 2**20:.0f} MiB", "save it smaller, as JPEG or PNG")
        return None
    if not data:
        look.fault("is empty (0 bytes)", "copy or download it again")
        return None
    return data


def _short(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__)[:MESSAGE_CHARS]


@contextmanager
def _damaged_metadata_as_note(look: Look) -> Iterator[None]:
    """PIL only warns of broken EXIF and TIFF tags; the user should see that too."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    if any("exif" in str(one.message).lower() or "metadata" in str(one.message).lower() for one in caught):
        _note(look, "its EXIF data is damaged and ignored")


def _note(look: Look, text: str) -> None:
    if text not in look.notes:
        look.notes.append(text)


def _open(data: bytes) -> Any:
    """The picture's header, lazily: no pixel is decoded."""
    Image.init()
    return Image.open(BytesIO(data), formats=[name for name in ACCEPTED if name in Image.OPEN])


@contextmanager
def _any_size() -> Iterator[None]:
    """Lets PIL open a header of any size, so that the fault can say which; PIL's own check is for decoding."""
    allowed, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = allowed


def _examine_header(data: bytes, look: Look, bounds: Bounds) -> bool:
    """Format, size and frames. Returns whether the pixels may be decoded."""
    declared = webp_size(data)  # libwebp takes memory for a whole canvas as soon as it is opened
    if declared is not None and _is_absurd(declared, bounds):
        look.format, (look.width, look.height) = "WEBP", declared
        _fault_size(look, bounds)
        return False
    try:
        with _any_size():
            picture = _open(data)
    except UnidentifiedImageError:
        look.fault(*what_instead(data))
        return False
    with picture:
        look.format = "JPEG" if picture.format == "MPO" else picture.format
        look.width, look.height = picture.size
        _fault_size(look, bounds)
        if _is_absurd(picture.size, bounds):
            return False
        if picture.format == "MPO":
            # Phones put gain maps and depth behind the picture, in the same file; viewers show the first.
            _note(look, "holds further pictures behind the first, which are ignored")
        elif picture.format == heif.FORMAT and picture.n_frames > 1:
            _note(look, "holds further pictures beside the main one, which are ignored")
        elif getattr(picture, "is_animated", False):
            look.fault(f"has several {'pages' if look.format == 'TIFF' else 'frames'}", ONE_FRAME)
            return False
    return True


def _is_absurd(size: tuple[int, int], bounds: Bounds) -> bool:
    width, height = size
    return width * height > bounds.max_pixels or max(width, height) > bounds.max_side_px or min(width, height) < 1


def _fault_size(look: Look, bounds: Bounds) -> None:
    width, height = look.width or 0, look.height or 0
    short, long = sorted((width, height))
    if width * height > bounds.max_pixels:
        look.fault(
            f"is {width} x {height} pixels; at most {bounds.max_pixels / 1e6:.3g} million are allowed",
            "scale it down; 2048 pixels are plenty",
        )
    if long > bounds.max_side_px:
        look.fault(
            f"is {width} x {height} pixels; a side is at most {bounds.max_side_px}",
            "scale it down; 2048 pixels are plenty",
        )
    if short < bounds.min_side_px:
        look.fault(
            f"is {width} x {height} pixels; the shorter side is at least {bounds.min_side_px}",
            "use the original or a larger picture",
        )
    if long > bounds.max_aspect * short:
        look.fault(
            f"is {width} x {height} pixels; one side is more than {bounds.max_aspect:g} times the other",
            "crop it to the subject",
        )


def _examine_pixels(data: bytes, look: Look) -> None:
    """Decodes every pixel, as the training will."""
    with _open(data) as picture:
        picture.verify()  # checksums; the object is of no use afterwards
    with _open(data) as picture:
        is_16_bit = picture.mode.startswith("I;16") or any(";16" in str(tile[3]) for tile in picture.tile)
        picture.load()
        if look.format == "TIFF" and picture.mode in {"I", "F"}:
            look.fault("has 32 bits per channel, and no one brightness that is white", "save it with 8 or 16 bits")
        if look.format == "JPEG" and not jpeg_has_end(data):
            # libjpeg paints gray what is missing, without an error: a download filled up with zeros decodes "well".
            look.fault("is cut off: what follows is filler", "copy or download it again")
        _note_orientation(picture, look)
        _note_colours(picture, look, is_16_bit=is_16_bit)


def _note_orientation(picture: Any, look: Look) -> None:
    try:
        Image.Exif().load(picture.info.get("exif", b""))  # getexif() keeps quiet about what the opening stumbled over
        orientation = picture.getexif().get(ORIENTATION_TAG, 1)
    except Exception:  # noqa: BLE001 - EXIF is a stranger's TIFF inside the picture; any error means damage
        _note(look, "its EXIF data is damaged and ignored")
        orientation = 1
    look.width, look.height = picture.size  # TIFF has turned itself by now
    if orientation in {2, 3, 4, 5, 6, 7, 8}:
        _note(look, "turned as its EXIF orientation says")
    if orientation in {5, 6, 7, 8}:
        look.width, look.height = look.height, look.width


def _note_colours(picture: Any, look: Look, *, is_16_bit: bool) -> None:
    for note in heif.heif_notes(picture.info) if look.format == heif.FORMAT else ():
        _note(look, note)
    if is_16_bit:
        _note(look, "16 bits per channel, trained with 8")
    if picture.mode in MODE_NOTES:
        _note(look, MODE_NOTES[picture.mode])
    if picture.has_transparency_data:
        _note(look, "transparent parts are shown on white")
    _note_profile(picture.info.get("icc_profile"), look)
    extrema = picture.getextrema()
    if all(low == high for low, high in ([extrema] if isinstance(extrema[0], int | float) else extrema)):
        _note(look, "every pixel has the same colour")
    try:
        picture.crop((0, 0, 1, 1)).convert("RGB")
    except Exception as error:  # noqa: BLE001 - PIL raises ValueError, KeyError or OSError by mode
        look.fault(f"has colours ({picture.mode}) that cannot be shown as RGB: {_short(error)}", SAVE_ANEW)


def _note_profile(profile: bytes | None, look: Look) -> None:
    if not profile:
        return
    try:
        name = ImageCms.getProfileDescription(ImageCms.ImageCmsProfile(BytesIO(profile))).strip()
    except Exception:  # noqa: BLE001 - as with EXIF: whatever the error, the profile is of no use
        _note(look, "its colour profile is damaged and ignored")
        return
    if "srgb" not in name.lower():
        _note(look, f"its colour profile ({name[:80]}) is converted to sRGB")
