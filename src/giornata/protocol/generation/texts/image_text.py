"""Read the texts in PNG, JPEG and WebP files, from their bytes alone: whoever reads them needs no image library.

PNG has chunks tEXt, zTXt and iTXt (PNG specification, section 11.3.3). JPEG and WebP have EXIF: the tag UserComment
holds A1111's text, and Make, Model and ImageDescription hold texts as `name:text`, the first two as ComfyUI does.
"""

import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress

PNG = b"\x89PNG\r\n\x1a\n"
JPEG = b"\xff\xd8"
EXIF = b"Exif\x00\x00"
MAX_TEXT_BYTES = 4 * 2**20
IMAGE_DESCRIPTION, MAKE, MODEL, EXIF_FOLDER, USER_COMMENT = 0x010E, 0x010F, 0x0110, 0x8769, 0x9286
TEXT_TAGS = (IMAGE_DESCRIPTION, MAKE, MODEL)
COMMENT_NAME = "parameters"
BYTES_BY_TYPE = {1: 1, 2: 1, 3: 2, 4: 4, 7: 1}
ASCII_CODE, UNICODE_CODE = b"ASCII\x00\x00\x00", b"UNICODE\x00"
SCAN, END = 0xDA, 0xD9


def texts_of(data: bytes) -> dict[str, str]:
    """Return the texts of a picture by name; what is broken is passed over. Raises ValueError for another file."""
    found: dict[str, str] = {}
    with suppress(struct.error, zlib.error, IndexError):
        if data.startswith(PNG):
            found.update(_png_texts(data))
        elif data.startswith(JPEG):
            found.update(_exif_texts(_jpeg_exif(data)))
        elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            found.update(_exif_texts(_webp_exif(data)))
        else:
            raise ValueError("the file is no PNG, JPEG or WebP")
    return found


def _png_texts(data: bytes) -> Iterator[tuple[str, str]]:
    place = len(PNG)
    while place + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, place)
        body = data[place + 8 : place + 8 + length]
        place += length + 12
        name, _, rest = body.partition(b"\x00")
        if kind == b"tEXt":
            yield name.decode("latin-1"), rest.decode("latin-1")
        elif kind == b"zTXt":
            yield name.decode("latin-1"), _inflated(rest[1:]).decode("latin-1")
        elif kind == b"iTXt":
            packed, rest = rest[0], rest[2:].split(b"\x00", 2)[2]
            yield name.decode("latin-1"), (_inflated(rest) if packed else rest).decode("utf-8", "replace")


def _inflated(packed: bytes) -> bytes:
    return zlib.decompressobj().decompress(packed, MAX_TEXT_BYTES)


def _jpeg_exif(data: bytes) -> bytes:
    place = len(JPEG)
    while place + 4 <= len(data) and data[place] == 0xFF:
        marker, length = struct.unpack_from(">xBH", data, place)
        body = data[place + 4 : place + 2 + length]
        if marker in {SCAN, END}:
            break
        if marker == 0xE1 and body.startswith(EXIF):
            return body[len(EXIF) :]
        place += 2 + length
    return b""


def _webp_exif(data: bytes) -> bytes:
    place = 12
    while place + 8 <= len(data):
        kind, length = struct.unpack_from("<4sI", data, place)
        if kind == b"EXIF":
            return data[place + 8 : place + 8 + length].removeprefix(EXIF)
        place += 8 + length + length % 2
    return b""


def _exif_texts(exif: bytes) -> Iterator[tuple[str, str]]:
    """Yield the texts of a TIFF structure: its first folder, and the EXIF folder that the first points to."""
    if exif[:2] not in {b"II", b"MM"}:
        return
    order = "<" if exif[:2] == b"II" else ">"
    (first,) = struct.unpack_from(f"{order}I", exif, 4)
    tags = _tags(exif, order, first)
    for tag in TEXT_TAGS:
        name, colon, text = tags.get(tag, b"").rstrip(b"\x00").decode("utf-8", "replace").partition(":")
        if colon:
            yield name, text
    if EXIF_FOLDER in tags:
        (second,) = struct.unpack(f"{order}I", tags[EXIF_FOLDER])
        if comment := _tags(exif, order, second).get(USER_COMMENT):
            yield COMMENT_NAME, _comment(comment)


def _tags(exif: bytes, order: str, place: int) -> dict[int, bytes]:
    """Return the values of a folder's tags, as bytes."""
    (count,) = struct.unpack_from(f"{order}H", exif, place)
    found = {}
    for entry in range(place + 2, place + 2 + 12 * count, 12):
        tag, kind, number = struct.unpack_from(f"{order}HHI", exif, entry)
        size = BYTES_BY_TYPE.get(kind, 0) * number
        (far,) = struct.unpack_from(f"{order}I", exif, entry + 8)
        start = entry + 8 if size <= 4 else far
        found[tag] = exif[start : start + size]
    return found


def _comment(value: bytes) -> str:
    """Return the text of a UserComment. UTF-16 has the order in which A1111's last line can be read."""
    code, text = value[:8], value[8:]
    if code == UNICODE_CODE:
        orders = [text.decode(order, "replace").rstrip("\x00") for order in ("utf-16-be", "utf-16-le")]
        return next((each for each in orders if "Steps:" in each), orders[0])
    return (text if code in {ASCII_CODE, bytes(8)} else value).decode("utf-8", "replace").rstrip("\x00")
