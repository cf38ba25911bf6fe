"""A gallery of bad pictures, and of odd ones that are fine."""

import io
import json
import random
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pillow_heif
import pytest
from PIL import Image, ImageCms

import giornata.pictures.inspector.display  # noqa: F401  (makes Pillow write HEIC)
from giornata.pictures.inspection import PictureLimits
from giornata.pictures.inspector.examine import ImageReport, examine

LIMITS = PictureLimits()


def noise(width: int = 96, height: int = 80, mode: str = "RGB") -> Image.Image:
    """A picture that does not compress, so that a cut falls into its pixels."""
    return Image.frombytes("RGB", (width, height), random.Random(1).randbytes(width * height * 3)).convert(mode)


def encoded(picture: Image.Image, kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    picture.save(out, kind, **options)
    return out.getvalue()


def png_chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png(width: int, height: int, *chunks: bytes, depth: int = 8, color: int = 2) -> bytes:
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + png_chunk(b"IEND", b"")


def flat_png(side_px: int, *, channels: int = 1) -> bytes:
    """A real, whole, black picture (1 channel: gray, 3: RGB), made without holding its pixels."""
    squeeze = zlib.compressobj(9)
    row = bytes(1 + side_px * channels)
    body = b"".join(squeeze.compress(row) for _ in range(side_px)) + squeeze.flush()
    return png(side_px, side_px, png_chunk(b"IDAT", body), color=channels - 1)


def look_at(
    tmp_path: Path, data: bytes, bounds: PictureLimits = LIMITS, name: str = "my picture é.png"
) -> ImageReport:
    path = tmp_path / "file"
    path.write_bytes(data)
    return examine(name, path, bounds)


def messages(look: ImageReport) -> str:
    assert all(fault["where"] == look.name for fault in look.faults)
    assert all(fault["hint"] for fault in look.faults)
    return "; ".join(fault["message"] for fault in look.faults)


def turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6  # a viewer turns it by 90 degrees
    return exif.tobytes()


def deep_heic(**colors: int) -> bytes:
    """With 10 bits a channel."""
    values = random.Random(2).randbytes(2 * 3 * 96 * 80)
    out = io.BytesIO()
    pillow_heif.from_bytes("RGB;16", (96, 80), values).save(out, **colors)
    return out.getvalue()


def heic_that_says(width: int, height: int) -> bytes:
    """A whole picture of 96 x 80 whose header names another size."""
    data = encoded(noise(), "HEIF")
    at = data.index(b"ispe") + 8
    return data[:at] + struct.pack(">II", width, height) + data[at + 8 :]


GOOD: dict[str, tuple[Callable[[], bytes], str, str]] = {
    "jpeg": (lambda: encoded(noise(), "JPEG"), "JPEG", ""),
    "progressive-jpeg": (lambda: encoded(noise(), "JPEG", progressive=True), "JPEG", ""),
    "png": (lambda: encoded(noise(), "PNG"), "PNG", ""),
    "webp": (lambda: encoded(noise(), "WEBP"), "WEBP", ""),
    "webp-lossless": (lambda: encoded(noise(), "WEBP", lossless=True), "WEBP", ""),
    "avif": (lambda: encoded(noise(), "AVIF"), "AVIF", ""),
    "heic": (lambda: encoded(noise(), "HEIF"), "HEIF", ""),
    "heic-alpha": (lambda: encoded(noise(mode="RGBA"), "HEIF"), "HEIF", "transparent"),
    "heic-turned": (lambda: encoded(noise(), "HEIF", exif=turned()), "HEIF", "turned as its EXIF orientation says"),
    "heic-10-bit": (deep_heic, "HEIF", "10 bits per channel, trained with 8"),
    "heic-hdr": (lambda: deep_heic(transfer_characteristics=16), "HEIF", "HDR brightness (PQ)"),
    "heic-primaries": (lambda: deep_heic(color_primaries=9), "HEIF", "primaries 9 of H.273"),
    "heic-burst": (
        lambda: encoded(noise(), "HEIF", save_all=True, append_images=[noise(64, 64)]),
        "HEIF",
        "beside the main one",
    ),
    "bmp": (lambda: encoded(noise(), "BMP"), "BMP", ""),
    "tiff": (lambda: encoded(noise(), "TIFF"), "TIFF", ""),
    "tiff-lzw": (lambda: encoded(noise(), "TIFF", compression="tiff_lzw"), "TIFF", ""),
    "gif": (lambda: encoded(noise(), "GIF"), "GIF", "palette"),
    "cmyk": (lambda: encoded(noise(mode="CMYK"), "JPEG"), "JPEG", "CMYK"),
    "lab": (lambda: encoded(noise(mode="LAB"), "TIFF"), "TIFF", "CIELAB"),
    "grayscale": (lambda: encoded(noise(mode="L"), "JPEG"), "JPEG", "grayscale"),
    "one-bit": (lambda: encoded(noise(mode="1"), "PNG"), "PNG", "black and white"),
    "palette": (lambda: encoded(noise(mode="P"), "PNG"), "PNG", "palette"),
    "alpha": (lambda: encoded(noise(mode="RGBA"), "PNG"), "PNG", "transparent"),
    "palette-alpha": (lambda: encoded(noise(mode="P"), "PNG", transparency=3), "PNG", "transparent"),
    "16-bit-gray": (lambda: encoded(noise(mode="L").convert("I;16"), "PNG"), "PNG", "16 bits"),
    "16-bit-rgb": (lambda: deep_png(70), "PNG", "16 bits"),
    "one-color": (lambda: encoded(Image.new("RGB", (90, 90), "red"), "PNG"), "PNG", "same color"),
    "gain-map": (
        lambda: encoded(noise(), "MPO", save_all=True, append_images=[noise(64, 64)]),
        "JPEG",
        "behind the first",
    ),
}


def deep_png(side_px: int) -> bytes:
    rows = b"".join(b"\0" + random.Random(row).randbytes(6 * side_px) for row in range(side_px))
    return png(side_px, side_px, png_chunk(b"IDAT", zlib.compress(rows)), depth=16)


@pytest.mark.parametrize("case", GOOD)
def test_whole_pictures_of_every_kind_pass(case: str, tmp_path: Path) -> None:
    make, kind, note = GOOD[case]
    look = look_at(tmp_path, make())
    assert (look.faults, look.format) == ([], kind)
    assert look.width and look.width >= 70
    if note:
        assert any(note in text for text in look.notes), look.notes
    else:
        assert look.notes == []


LITTLE = png_chunk(b"IDAT", zlib.compress(b"\0" * 999))
BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "is empty"),
    "text": (lambda: b"hello, I am no picture at all", "is not a picture"),
    "zeros": (lambda: bytes(5000), "is not a picture"),
    "web-page": (lambda: b"\n<!DOCTYPE html><html>404</html>", "is a web page"),
    "svg": (lambda: b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"/>', "is an SVG"),
    "lfs": (lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "Git LFS pointer"),
    "heic": (lambda: b"\0\0\0\x18ftypheic\0\0\0\0heicmif1" + bytes(99), "a HEIC picture that is damaged"),
    "heic-cut": (lambda: encoded(noise(400, 400), "HEIF")[:-4000], "damaged or cut off"),
    "heic-other-size": (lambda: heic_that_says(200, 160), "damaged or cut off"),
    "bomb-heic": (lambda: heic_that_says(60_000, 60_000), "at most 64 million"),
    "video": (lambda: b"\0\0\0\x18ftypmp42\0\0\0\0isomiso2" + bytes(99), "a video"),
    "pdf": (lambda: encoded(noise(), "PDF"), "a PDF"),
    "icon": (lambda: encoded(noise(64, 64), "ICO"), "an icon"),
    "jpeg-2000": (lambda: encoded(noise(), "JPEG2000"), "JPEG 2000"),
    "ppm": (lambda: encoded(noise(), "PPM"), "is not a picture"),
    "gif-animated": (lambda: animated("GIF"), "several frames"),
    "apng": (lambda: animated("PNG"), "several frames"),
    "webp-animated": (lambda: animated("WEBP"), "several frames"),
    "avif-animated": (lambda: animated("AVIF"), "several frames"),
    "tiff-pages": (lambda: animated("TIFF"), "several pages"),
    "tiff-32-bit": (lambda: encoded(noise(mode="F"), "TIFF"), "32 bits"),
    "too-small": (lambda: encoded(noise(200, 63), "PNG"), "shorter side is at least 64"),
    "too-long": (lambda: encoded(noise(64, 520), "PNG"), "more than 8 times"),
    "checksum": (lambda: wrong_checksum(encoded(Image.new("RGB", (90, 90)), "PNG")), "broken PNG file"),
    "one-byte": (lambda: flipped(encoded(noise(), "PNG")), "damaged or cut off"),
    "zero-filled": (lambda: zero_filled(encoded(noise(400, 400), "JPEG")), "what follows is filler"),
    "bomb-by-header": (lambda: png(60_000, 60_000, LITTLE), "at most 64 million"),
    "bomb-by-side": (lambda: png(70, 20_000, LITTLE), "at most 16384"),
    "bomb-webp": (lambda: webp_header(1 << 24, 1 << 8), "at most 64 million"),
    "nothing-wide": (lambda: png(0, 80, LITTLE), "damaged"),
}


def animated(kind: str) -> bytes:
    return encoded(noise(), kind, save_all=True, append_images=[noise(mode="L").convert("RGB"), noise().rotate(90)])


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0xFF]) + data[middle + 1 :]


def wrong_checksum(data: bytes) -> bytes:
    """Of the pixels' chunk, the last but IEND's 12 bytes; the pixels themselves are whole."""
    return data[:-13] + bytes([data[-13] ^ 0xFF]) + data[-12:]


def zero_filled(data: bytes) -> bytes:
    return data[: len(data) // 2] + bytes(len(data) - len(data) // 2)


def webp_header(width: int, height: int) -> bytes:
    canvas = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return b"RIFF" + struct.pack("<I", 22) + b"WEBPVP8X" + struct.pack("<I", 10) + bytes(4) + canvas


@pytest.mark.parametrize("case", BAD)
def test_every_bad_picture_has_a_fault_that_says_so(case: str, tmp_path: Path) -> None:
    make, said = BAD[case]
    assert said in messages(look_at(tmp_path, make()))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "AVIF"])
def test_a_picture_that_is_cut_off_anywhere_has_a_fault(kind: str, tmp_path: Path) -> None:
    whole = encoded(noise(200, 200), kind)
    for part in (1, 2, 4, 10, 30, 60, 90, 98):
        cut = whole[: len(whole) * part // 100]
        look = look_at(tmp_path, cut)
        assert messages(look), (kind, part)
        assert any(word in messages(look) for word in ("cut off", "damaged", "not a picture")), messages(look)


def test_a_jpeg_filled_up_behind_a_whole_thumbnail_is_cut_off(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x927C] = encoded(noise(64, 64), "JPEG")
    data = encoded(noise(400, 400), "JPEG", exif=exif)
    assert look_at(tmp_path, data).faults == []
    assert look_at(tmp_path, data + bytes(2000) + b"\xff\xda, such as the film of a motion photo").faults == []
    assert "is cut off" in messages(look_at(tmp_path, zero_filled(data)))


def test_all_faults_of_a_picture_are_told_at_once(tmp_path: Path) -> None:
    look = look_at(tmp_path, encoded(noise(8, 100), "PNG")[:-400])
    said = messages(look)
    assert len(look.faults) == 3
    assert "shorter side" in said and "8 times" in said and "cut off" in said


def test_bounds_are_arguments_and_inclusive(tmp_path: Path) -> None:
    data = encoded(noise(100, 50), "PNG")
    fits = PictureLimits(max_pixels=5000, max_side_px=100, min_side_px=50, max_aspect=2, max_file_bytes=len(data))
    assert look_at(tmp_path, data, fits).faults == []
    tight = PictureLimits(max_pixels=4999, max_side_px=99, min_side_px=51, max_aspect=1.99)
    assert len(look_at(tmp_path, data, tight).faults) == 4
    assert "larger than" in messages(look_at(tmp_path, data, PictureLimits(max_file_bytes=len(data) - 1)))


@pytest.mark.parametrize(("orientation", "size"), [(1, (96, 80)), (3, (96, 80)), (6, (80, 96)), (8, (80, 96))])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_sizes_are_those_a_viewer_shows(kind: str, orientation: int, size: tuple[int, int], tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    look = look_at(tmp_path, encoded(noise(), kind, exif=exif))
    assert (look.faults, (look.width, look.height)) == ([], size)
    if kind != "TIFF":
        assert ("turned as its EXIF orientation says" in look.notes) == (orientation != 1)


@pytest.mark.parametrize("exif", [b"Exif\0\0II*\0\x08\0\0\0\xff\xff", b"Exif\0\0garbage garbage", b"Exif\0\0"])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_broken_exif_is_a_note(kind: str, exif: bytes, tmp_path: Path) -> None:
    look = look_at(tmp_path, encoded(noise(), kind, exif=exif))
    assert look.faults == []
    assert (look.width, look.height) == (96, 80)
    if len(exif) > 6:
        assert "its EXIF data is damaged and ignored" in look.notes


def test_damaged_color_profile_is_ignored_and_lab_profile_is_converted_to_srgb(tmp_path: Path) -> None:
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    lab = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()
    assert look_at(tmp_path, encoded(noise(), "JPEG", icc_profile=srgb)).notes == []
    assert "is converted to sRGB" in look_at(tmp_path, encoded(noise(), "JPEG", icc_profile=lab)).notes[0]
    for profile in (b"no profile", srgb[:100], b"\0" * 2000):
        for kind in ("JPEG", "PNG", "WEBP", "TIFF"):
            look = look_at(tmp_path, encoded(noise(), kind, icc_profile=profile))
            assert (look.faults, look.notes) == ([], ["its color profile is damaged and ignored"])


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    assert "is not there" in messages(examine("a", tmp_path / "nowhere", LIMITS))
    assert "is not a file" in messages(examine("a", tmp_path, LIMITS))


def test_random_damage_never_raises(tmp_path: Path) -> None:
    chance = random.Random(7)
    for make, _, _ in GOOD.values():
        data = bytearray(make())
        for _ in range(12):
            for _ in range(chance.randint(1, 8)):
                data[chance.randrange(min(len(data), 400))] = chance.randrange(256)
            json.loads(look_at(tmp_path, bytes(data), PictureLimits(max_pixels=10**6)).line())


MODULE = ("-m", "giornata.pictures.inspector")
MEASURED = (
    "-c",
    "import time; from pathlib import Path; from giornata.pictures.inspector.__main__ import main; main([]);"
    "print(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0], time.process_time())",
)


def process(tmp_path: Path, files: dict[str, bytes], *command: str) -> tuple[list[dict[str, object]], str]:
    """What a process of its own answers, and what it says on stderr."""
    requests = ""
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
        requests += json.dumps({"name": name, "path": str(tmp_path / name)}) + "\n"
    done = subprocess.run(
        [sys.executable, *command], input=requests, capture_output=True, text=True, check=True, timeout=60
    )
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_the_process_answers_line_by_line(tmp_path: Path) -> None:
    files = {"ok é.png": encoded(noise(), "PNG"), "bad.jpg": b"x"}
    (good, bad), _ = process(tmp_path, files, *MODULE, "--min-side", "80")
    assert good == {"name": "ok é.png", "format": "PNG", "width": 96, "height": 80, "faults": [], "notes": []}
    assert bad["name"] == "bad.jpg"
    assert bad["faults"] == [
        {
            "where": "bad.jpg",
            "message": "is not a picture",
            "hint": "use JPEG, PNG, WebP, HEIC, AVIF, BMP, TIFF or a still GIF",
        }
    ]


def test_bombs_take_neither_memory_nor_time(tmp_path: Path) -> None:
    bombs = {"big.png": flat_png(17_000), "header.png": png(60_000, 60_000), "w.webp": webp_header(1 << 24, 1 << 8)}
    assert len(bombs["big.png"]) < 400_000
    looks, said = process(tmp_path, bombs, *MEASURED)
    assert [(look["name"], "at most 64 million" in str(look["faults"])) for look in looks] == [
        (n, True) for n in bombs
    ]
    peak_kib, used_s = map(float, said.split())
    assert peak_kib < 100 * 1024  # the smallest of the bombs is 289 MB of pixels
    assert used_s < 2.0


def test_inspector_memory_limit_refuses_large_picture(tmp_path: Path) -> None:
    large = {"large.png": flat_png(7900, channels=3)}
    (look,), _ = process(tmp_path, large, *MODULE, f"--memory-bytes={150 * 2**20}")
    assert "more memory" in str(look["faults"])
    (look,), _ = process(tmp_path, large, *MODULE)
    assert look["faults"] == []


def test_torch_and_numpy_are_not_loaded() -> None:
    code = (
        "import sys, giornata.pictures.inspector.__main__ as i; i.Image.init();"
        "print({'torch', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
