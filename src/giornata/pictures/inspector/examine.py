"""Examines one picture file before training: its faults, and notes on how training will treat it.

The module loads only PIL, pillow-heif and the standard library. The bytes are a stranger's: see `__main__`.
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

from giornata.pictures.inspection import PictureLimits
from giornata.pictures.inspector.display import HEIF, heif_notes

ACCEPTED = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "AVIF", "HEIF")
ONE_FRAME = "export the one frame that you want as PNG or JPEG"
ORIENTATION_TAG = 0x0112
MESSAGE_CHARS = 200

MODE_NOTES = {
    "1": "black and white, trained as a viewer shows it",
    "L": "grayscale, trained as a viewer shows it",
    "LA": "grayscale, trained as a viewer shows it",
    "P": "palette colors, trained as a viewer shows them",
    "PA": "palette colors, trained as a viewer shows them",
    "CMYK": "CMYK colors, converted to RGB",
    "LAB": "CIELAB colors, converted to RGB",
}


@dataclass(slots=True, kw_only=True)
class ImageReport:
    """The findings about one picture so far. `line` is the reply that the process writes."""

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


def examine(name: str, path: Path, limits: PictureLimits) -> ImageReport:
    """Return everything there is to say about one file. It never raises for anything that the file's bytes can do."""
    report = ImageReport(name=name)
    data = _read(path, report, limits)
    if data is None:
        return report
    try:
        with _damaged_metadata_as_note(report):
            if _examine_header(data, report, limits):
                _examine_pixels(data, report)
    except MemoryError:
        report.fault("takes more memory to decode than is allowed", "save it smaller, as PNG or JPEG")
    except Exception as error:  # noqa: BLE001 - crafted bytes make decoders raise nearly any type
        report.fault(f"is damaged or cut off: {_short(error)}", SAVE_ANEW)
    return report


def _read(path: Path, report: ImageReport, limits: PictureLimits) -> bytes | None:
    """Read the file's bytes; None, and a fault, when there are none, too many, or no file."""
    try:
        if not path.is_file():
            report.fault("is not a file" if path.exists() else "is not there", "check the path")
            return None
        with path.open("rb") as file:
            data = file.read(limits.max_file_bytes + 1)
    except OSError as error:
        report.fault(f"cannot be read: {error.strerror}", "check its permissions")
        return None
    if len(data) > limits.max_file_bytes:
        report.fault(f"is larger than {limits.max_file_bytes / 2**20:.0f} MiB", "save it smaller, as JPEG or PNG")
        return None
    if not data:
        report.fault("is empty (0 bytes)", "copy or download it again")
        return None
    return data


def _short(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__)[:MESSAGE_CHARS]


@contextmanager
def _damaged_metadata_as_note(report: ImageReport) -> Iterator[None]:
    """Note broken EXIF and TIFF tags for the user; PIL only warns of them."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    if any("exif" in str(one.message).lower() or "metadata" in str(one.message).lower() for one in caught):
        _note(report, "its EXIF data is damaged and ignored")


def _note(report: ImageReport, text: str) -> None:
    if text not in report.notes:
        report.notes.append(text)


def _open(data: bytes) -> Any:
    """Open the picture's header, lazily: no pixel is decoded."""
    Image.init()
    return Image.open(BytesIO(data), formats=[name for name in ACCEPTED if name in Image.OPEN])


@contextmanager
def _any_size() -> Iterator[None]:
    """Let PIL open a header of any size, so that the fault can name the size; PIL's own check is for decoding."""
    allowed, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = allowed


def _examine_header(data: bytes, report: ImageReport, limits: PictureLimits) -> bool:
    """Examine format, size and frames. Returns whether the pixels may be decoded."""
    declared = webp_size(data)  # libwebp takes memory for a whole canvas as soon as it is opened
    if declared is not None and _is_absurd(declared, limits):
        report.format, (report.width, report.height) = "WEBP", declared
        _fault_size(report, limits)
        return False
    try:
        with _any_size():
            picture = _open(data)
    except UnidentifiedImageError:
        report.fault(*what_instead(data))
        return False
    with picture:
        report.format = "JPEG" if picture.format == "MPO" else picture.format
        report.width, report.height = picture.size
        _fault_size(report, limits)
        if _is_absurd(picture.size, limits):
            return False
        if picture.format == "MPO":
            # Phones put gain maps and depth behind the picture, in the same file; viewers show the first.
            _note(report, "holds further pictures behind the first, which are ignored")
        elif picture.format == HEIF and picture.n_frames > 1:
            _note(report, "holds further pictures beside the main one, which are ignored")
        elif getattr(picture, "is_animated", False):
            report.fault(f"has several {'pages' if report.format == 'TIFF' else 'frames'}", ONE_FRAME)
            return False
    return True


def _is_absurd(size: tuple[int, int], limits: PictureLimits) -> bool:
    width, height = size
    return width * height > limits.max_pixels or max(width, height) > limits.max_side_px or min(width, height) < 1


def _fault_size(report: ImageReport, limits: PictureLimits) -> None:
    width, height = report.width or 0, report.height or 0
    short, long = sorted((width, height))
    if width * height > limits.max_pixels:
        report.fault(
            f"is {width} x {height} pixels; at most {limits.max_pixels / 1e6:.3g} million are allowed",
            "scale it down; 2048 pixels are plenty",
        )
    if long > limits.max_side_px:
        report.fault(
            f"is {width} x {height} pixels; a side is at most {limits.max_side_px}",
            "scale it down; 2048 pixels are plenty",
        )
    if short < limits.min_side_px:
        report.fault(
            f"is {width} x {height} pixels; the shorter side is at least {limits.min_side_px}",
            "use the original or a larger picture",
        )
    if long > limits.max_aspect * short:
        report.fault(
            f"is {width} x {height} pixels; one side is more than {limits.max_aspect:g} times the other",
            "crop it to the subject",
        )


def _examine_pixels(data: bytes, report: ImageReport) -> None:
    """Decode every pixel, as the training will."""
    with _open(data) as picture:
        picture.verify()  # checksums; the object is of no use afterwards
    with _open(data) as picture:
        is_16_bit = picture.mode.startswith("I;16") or any(";16" in str(tile[3]) for tile in picture.tile)
        picture.load()
        if report.format == "TIFF" and picture.mode in {"I", "F"}:
            report.fault("has 32 bits per channel, and no one brightness that is white", "save it with 8 or 16 bits")
        if report.format == "JPEG" and not jpeg_has_end(data):
            # libjpeg paints gray what is missing, without an error: a download filled up with zeros decodes "well".
            report.fault("is cut off: what follows is filler", "copy or download it again")
        _note_orientation(picture, report)
        _note_colors(picture, report, is_16_bit=is_16_bit)


def _note_orientation(picture: Any, report: ImageReport) -> None:
    try:
        Image.Exif().load(picture.info.get("exif", b""))  # getexif() keeps quiet about what the opening stumbled over
        orientation = picture.getexif().get(ORIENTATION_TAG, 1)
    except Exception:  # noqa: BLE001 - EXIF is a stranger's TIFF inside the picture; any error means damage
        _note(report, "its EXIF data is damaged and ignored")
        orientation = 1
    report.width, report.height = picture.size  # TIFF has turned itself by now
    if orientation in {2, 3, 4, 5, 6, 7, 8}:
        _note(report, "turned as its EXIF orientation says")
    if orientation in {5, 6, 7, 8}:
        report.width, report.height = report.height, report.width


def _note_colors(picture: Any, report: ImageReport, *, is_16_bit: bool) -> None:
    for note in heif_notes(picture.info) if report.format == HEIF else ():
        _note(report, note)
    if is_16_bit:
        _note(report, "16 bits per channel, trained with 8")
    if picture.mode in MODE_NOTES:
        _note(report, MODE_NOTES[picture.mode])
    if picture.has_transparency_data:
        _note(report, "transparent parts are shown on white")
    _note_profile(picture.info.get("icc_profile"), report)
    extrema = picture.getextrema()
    if all(low == high for low, high in ([extrema] if isinstance(extrema[0], int | float) else extrema)):
        _note(report, "every pixel has the same color")
    try:
        picture.crop((0, 0, 1, 1)).convert("RGB")
    except Exception as error:  # noqa: BLE001 - PIL raises ValueError, KeyError or OSError by mode
        report.fault(f"has colors ({picture.mode}) that cannot be shown as RGB: {_short(error)}", SAVE_ANEW)


def _note_profile(profile: bytes | None, report: ImageReport) -> None:
    if not profile:
        return
    try:
        name = ImageCms.getProfileDescription(ImageCms.ImageCmsProfile(BytesIO(profile))).strip()
    except Exception:  # noqa: BLE001 - as with EXIF: whatever the error, the profile is of no use
        _note(report, "its color profile is damaged and ignored")
        return
    if "srgb" not in name.lower():
        _note(report, f"its color profile ({name[:80]}) is converted to sRGB")


# ---- files that no decoder recognizes, by their first bytes

SAVE_ANEW = "open it in an image editor and save it anew as PNG or JPEG, or leave it out"

# (bytes, where they are, what such a file is, what to do about it)
SIGNATURES: tuple[tuple[bytes, int, str, str], ...] = (
    (b"ftyphei", 4, "a HEIC picture that is damaged or of a rare kind", "export it as JPEG"),
    (b"ftyphev", 4, "a HEIC picture that is damaged or of a rare kind", "export it as JPEG"),
    (b"ftypmif1", 4, "a HEIF picture that is damaged or of a rare kind", "export it as JPEG"),
    (b"ftypavi", 4, "an AVIF picture that is damaged or not supported here", "export it as PNG or JPEG"),
    (b"ftyp", 4, "a video", "export single frames as PNG or JPEG"),
    (b"8BPS", 0, "a Photoshop document", "export it as PNG or JPEG"),
    (b"%PDF", 0, "a PDF", "export its pictures as PNG or JPEG"),
    (b"\xff\x0a", 0, "a JPEG XL picture, which is not supported", "export it as PNG or JPEG"),
    (b"\0\0\0\x0cJXL ", 0, "a JPEG XL picture, which is not supported", "export it as PNG or JPEG"),
    (b"\0\0\0\x0cjP  ", 0, "a JPEG 2000 picture, which is not supported", "export it as PNG or JPEG"),
    (b"\0\0\x01\0", 0, "an icon file", "export it as PNG"),
    (b"version https://git-lfs", 0, "a Git LFS pointer and not the picture itself", "run `git lfs pull`"),
    (b"\xff\xd8\xff", 0, "a JPEG picture that is damaged or cut off", SAVE_ANEW),
    (b"\x89PNG", 0, "a PNG picture that is damaged or cut off", SAVE_ANEW),
    (b"GIF8", 0, "a GIF picture that is damaged or cut off", SAVE_ANEW),
    (b"RIFF", 0, "a WebP picture that is damaged or cut off, or no picture", SAVE_ANEW),
    (b"BM", 0, "a BMP picture that is damaged or cut off, or no picture", SAVE_ANEW),
    (b"II*\0", 0, "a TIFF picture that is damaged, cut off or of a rare kind", SAVE_ANEW),
    (b"MM\0*", 0, "a TIFF picture that is damaged, cut off or of a rare kind", SAVE_ANEW),
)


def what_instead(data: bytes) -> tuple[str, str]:
    """Return the fault of a file in which no picture was recognized, and the remedy."""
    for signature, at, what, hint in SIGNATURES:
        if data[at : at + len(signature)] == signature:
            return f"is {what}", hint
    head = data[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if head.startswith((b"<!doctype html", b"<html")):
        return "is a web page and not a picture", "download the picture itself"
    if head.startswith((b"<svg", b"<?xml", b"<!--")) and b"<svg" in data[:65536].lower():
        return "is an SVG drawing, which is not supported", "export it as PNG"
    return "is not a picture", "use JPEG, PNG, WebP, HEIC, AVIF, BMP, TIFF or a still GIF"


def webp_size(data: bytes) -> tuple[int, int] | None:
    """Return the width and height that a WebP header declares; None for anything else (RFC 9649, sections
    2.5-2.7)."""
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP" or len(data) < 30:
        return None
    kind = data[12:16]
    if kind == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if kind == b"VP8L":
        packed = int.from_bytes(data[21:25], "little")
        return 1 + (packed & 0x3FFF), 1 + (packed >> 14 & 0x3FFF)
    if kind == b"VP8 ":
        return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF
    return None


def jpeg_has_end(data: bytes) -> bool:
    """Return True when an end-of-image marker follows the start of the first scan (ITU-T T.81, annex B).

    The segments before the scan are stepped over, since a thumbnail among them has an end of its own; in the scan
    itself no such two bytes can be.
    """
    at = 2
    while at + 4 <= len(data) and data[at : at + 2] != b"\xff\xda":
        at += 1 if data[at : at + 2] == b"\xff\xff" else 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return data.find(b"\xff\xd9", at) >= 0
