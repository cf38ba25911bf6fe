"""Pictures are seen as a viewer shows them, and cut where SDXL is told they were cut."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageCms

from giornata.diffusion.encode import pixels
from giornata.diffusion.encode.decoding import NotAPicture
from giornata.diffusion.encode.pixels import Undecodable


def saved(image: Image.Image, path: Path, **options: object) -> Path:
    image.save(path, **options)  # type: ignore[arg-type]
    return path


def corner(path: Path) -> tuple[int, ...]:
    shown = pixels.decode(path)
    assert shown.mode == "RGB"
    return tuple(int(level) for level in np.asarray(shown)[0, 0])


def two_halves() -> Image.Image:
    """Red on the left, blue on the right; 8 x 4."""
    image = Image.new("RGB", (8, 4), "red")
    image.paste((0, 0, 255), (4, 0, 8, 4))
    return image


@pytest.mark.parametrize(
    ("orientation", "size", "first"),
    [(1, (8, 4), (255, 0, 0)), (2, (8, 4), (0, 0, 255)), (6, (4, 8), (255, 0, 0)), (8, (4, 8), (0, 0, 255))],
)
def test_exif_orientation_is_applied_when_picture_is_decoded(
    tmp_path: Path, orientation: int, size: tuple[int, int], first: tuple[int, ...]
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = saved(two_halves(), tmp_path / "a.png", exif=exif)
    assert pixels.decode(path).size == size
    assert corner(path) == first


def test_transparency_lies_over_white(tmp_path: Path) -> None:
    half = saved(Image.new("RGBA", (4, 4), (255, 0, 0, 0)), tmp_path / "a.png")
    assert corner(half) == (255, 255, 255)
    assert corner(saved(Image.new("RGBA", (4, 4), (0, 0, 0, 51)), tmp_path / "b.png")) == (204, 204, 204)
    assert corner(saved(Image.new("LA", (4, 4), (0, 51)), tmp_path / "c.png")) == (204, 204, 204)


def test_a_palette_with_a_transparent_color(tmp_path: Path) -> None:
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 10, 200, 30] + [0] * 762)
    assert corner(saved(image, tmp_path / "a.png")) == (10, 200, 30)
    assert corner(saved(image, tmp_path / "b.png", transparency=1)) == (255, 255, 255)


def test_gray_and_one_bit(tmp_path: Path) -> None:
    assert corner(saved(Image.new("L", (4, 4), 77), tmp_path / "a.png")) == (77, 77, 77)
    assert corner(saved(Image.new("1", (4, 4), 1), tmp_path / "b.png")) == (255, 255, 255)


@pytest.mark.parametrize(("deep", "shown"), [(0, 0), (65535, 255), (32896, 128), (257, 1)])
def test_sixteen_bits_gray_are_scaled_and_not_clipped(tmp_path: Path, deep: int, shown: int) -> None:
    image = Image.fromarray(np.full((4, 4), deep, dtype=np.uint16))
    assert corner(saved(image, tmp_path / "a.png")) == (shown,) * 3
    assert corner(saved(image, tmp_path / "a.tiff")) == (shown,) * 3


def test_png_with_16_bit_color_is_decoded_to_8_bit_rgb(tmp_path: Path) -> None:
    row = b"\x00" + struct.pack(">3H", 65535, 32896, 0)

    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    header = struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0)
    path = tmp_path / "a.png"
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(row)) + chunk(b"IEND", b"")
    )
    assert corner(path) == (255, 128, 0)


def test_cmyk_jpeg_is_decoded_to_rgb(tmp_path: Path) -> None:
    path = saved(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), tmp_path / "a.jpg", quality=95)
    red, green, blue = corner(path)
    assert red > 240
    assert max(green, blue) < 15


def profile_with_swapped_red_and_green() -> bytes:
    """sRGB whose red and green primaries change places: whoever reads the profile sees green as red."""
    profile = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    tags = {
        bytes(profile[at : at + 4]): at for at in range(132, 132 + 12 * struct.unpack_from(">I", profile, 128)[0], 12)
    }
    red, green = tags[b"rXYZ"], tags[b"gXYZ"]
    profile[red + 4 : red + 12], profile[green + 4 : green + 12] = (
        profile[green + 4 : green + 12],
        profile[red + 4 : red + 12],
    )
    return bytes(profile)


def test_an_embedded_profile_is_followed(tmp_path: Path) -> None:
    profile = profile_with_swapped_red_and_green()
    red, green, _ = corner(saved(Image.new("RGB", (4, 4), (0, 200, 0)), tmp_path / "a.png", icc_profile=profile))
    assert abs(red - 200) <= 2
    assert green <= 2


def test_a_profile_keeps_the_transparency(tmp_path: Path) -> None:
    profile = profile_with_swapped_red_and_green()
    image = Image.new("RGBA", (4, 4), (0, 200, 0, 0))
    assert corner(saved(image, tmp_path / "a.png", icc_profile=profile)) == (255, 255, 255)


def test_srgb_and_broken_profiles_change_nothing(tmp_path: Path) -> None:
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    image = Image.new("RGB", (4, 4), (10, 200, 30))
    seen = corner(saved(image, tmp_path / "a.png", icc_profile=srgb))
    assert max(abs(level - true) for level, true in zip(seen, (10, 200, 30), strict=True)) <= 1
    assert corner(saved(image, tmp_path / "b.png", icc_profile=b"nonsense")) == (10, 200, 30)


@pytest.mark.parametrize("content", [b"", b"not a picture", b"\x89PNG\r\n\x1a\n" + b"\x00" * 40])
def test_decode_of_bytes_that_are_no_picture_raises_undecodable(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(content)
    with pytest.raises(Undecodable):
        pixels.decode(path)


def test_a_cut_off_file_is_refused(tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    path = saved(Image.fromarray(noise), tmp_path / "a.jpg")
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(Undecodable, match="damaged"):
        pixels.decode(path)


@pytest.mark.parametrize(
    ("size", "resized"), [((100, 200), (64, 128)), ((200, 100), (128, 64)), ((64, 64), (64, 64))]
)
def test_the_short_side_becomes_the_resolution(size: tuple[int, int], resized: tuple[int, int]) -> None:
    assert pixels.resize(Image.new("RGB", size), (64, 64)).size == resized


def test_an_extreme_shape_still_covers_the_square() -> None:
    assert pixels.resize(Image.new("RGB", (3, 1000)), (64, 64)).size == (64, 21333)


def placed(at: tuple[float, float] | None, *, flip: bool = False) -> pixels.CropPlacement:
    return pixels.place(original=(400, 200), resized=(128, 64), target_size=(64, 64), at=at, flip=flip)


def test_square_crop_is_centered_by_default_or_placed_at_given_position() -> None:
    assert placed(None).crop_top_left == (32, 0)
    assert placed((0.0, 0.9)).crop_top_left == (0, 0)
    assert placed((0.9999, 0.0)).crop_top_left == (64, 0)
    assert placed(None).time_ids() == (400, 200, 32, 0, 64, 64)


def test_the_cut_is_what_the_placement_says() -> None:
    ramp = np.zeros((64, 128, 3), dtype=np.uint8)
    ramp[..., 0] = np.arange(128, dtype=np.uint8)
    image = Image.fromarray(ramp)
    plain = pixels.place(original=(64, 128), resized=(64, 128), target_size=(64, 64), at=(0.0, 0.2), flip=False)
    left = plain.crop_top_left[1]
    assert left == 13
    assert pixels.cut(image, plain)[0, :, 0].tolist() == list(range(left, left + 64))


def test_a_mirrored_picture_is_cut_after_mirroring() -> None:
    """As in diffusers' DreamBooth script: `crop_left` is measured on the mirrored picture."""
    ramp = np.zeros((64, 128, 3), dtype=np.uint8)
    ramp[..., 0] = np.arange(128, dtype=np.uint8)
    flipped = pixels.place(original=(64, 128), resized=(64, 128), target_size=(64, 64), at=(0.0, 0.2), flip=True)
    assert flipped.crop_top_left == (0, 13)
    assert pixels.cut(Image.fromarray(ramp), flipped)[0, :, 0].tolist() == [127 - x for x in range(13, 13 + 64)]


def test_the_range_that_the_model_expects() -> None:
    levels_HWC = np.array([[[0, 255, 128]]], dtype=np.uint8)
    pixels_1CHW = pixels.to_model_range(levels_HWC)
    assert pixels_1CHW.dtype is torch.float32
    assert pixels_1CHW.flatten().tolist() == [-1.0, 1.0, pytest.approx(128 / 127.5 - 1, abs=1e-6)]


@pytest.mark.parametrize("suffix", ["jpeg", "png", "webp", "avif", "gif", "tiff"])
def test_bytes_are_decoded_like_a_file_and_cut_bytes_are_refused(tmp_path: Path, suffix: str) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (64, 48, 3), dtype=np.uint8)
    path = saved(Image.fromarray(noise), tmp_path / f"a.{suffix}")
    content = path.read_bytes()
    assert pixels.decode(content).tobytes() == pixels.decode(path).tobytes()
    assert pixels.upright_size(content) == (64, 48)
    for kept in range(0, len(content) - len(content) // 3, len(content) // 40):
        with pytest.raises(Undecodable):
            pixels.decode(content[:kept])


def test_a_damaged_header_is_refused_whatever_the_decoder_raises(tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    content = saved(Image.fromarray(noise), tmp_path / "a.avif").read_bytes()
    refused = 0
    for place in range(300):
        damaged = bytearray(content)
        damaged[place] ^= 0xFF
        try:
            pixels.decode(bytes(damaged))
        except Undecodable:
            refused += 1
    assert refused > 100


def test_a_program_that_draws_is_not_run() -> None:
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"
    with pytest.raises(NotAPicture, match="program"):
        pixels.decode(postscript)
