"""What a file is, as far as its first bytes tell. Standard library only; decodes nothing."""

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
    """What is wrong with a file in which no picture was recognised, and what to do about it."""
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
    """Width and height that a WebP header declares; None for anything else (RFC 9649, sections 2.5-2.7)."""
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
    """Whether an end-of-image marker follows the start of the first scan (ITU-T T.81, annex B).

    The segments before the scan are stepped over, since a thumbnail among them has an end of its own; in the scan
    itself no such two bytes can be.
    """
    at = 2
    while at + 4 <= len(data) and data[at : at + 2] != b"\xff\xda":
        at += 1 if data[at : at + 2] == b"\xff\xff" else 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return data.find(b"\xff\xd9", at) >= 0
