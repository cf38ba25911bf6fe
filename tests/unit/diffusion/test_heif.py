"""HEIC through the decoding that the engine uses: upright, in sRGB, with eight bits, the same pixels every time."""

import io

import numpy as np
import pillow_heif
import pytest
from PIL import Image, ImageCms

from giornata.diffusion.encode.decoding import Undecodable, decode, upright_size

SIZE = (96, 64)


def halves(left: str = "red", right: str = "blue") -> Image.Image:
    picture = Image.new("RGB", SIZE, left)
    picture.paste(right, (SIZE[0] // 2, 0, *SIZE))
    return picture


def heic(picture: Image.Image, **options: object) -> bytes:
    out = io.BytesIO()
    picture.save(out, "HEIF", quality=-1, chroma=444, **options)
    return out.getvalue()


def test_a_picture_is_decoded_to_the_same_pixels_each_time() -> None:
    data = heic(halves())
    first, second = np.asarray(decode(data)), np.asarray(decode(data))
    assert (first == second).all()
    assert np.abs(first.astype(int) - np.asarray(halves()).astype(int)).max() <= 3  # lossless but for YCbCr
    assert upright_size(data) == (64, 96)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_is_undone_once(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    jpeg = io.BytesIO()
    halves().save(jpeg, "JPEG", quality=95, exif=exif.tobytes())
    expected = decode(jpeg.getvalue())
    data = heic(halves(), exif=exif.tobytes())
    shown = decode(data)
    assert shown.size == expected.size
    assert upright_size(data) == (expected.height, expected.width)
    difference = np.asarray(shown).astype(int) - np.asarray(expected).astype(int)
    assert np.abs(difference).mean() < 10  # the sharp edge of the JPEG is soft; a wrong turn makes it 80


def test_a_color_profile_is_converted_to_srgb() -> None:
    shown = decode(heic(Image.new("RGB", SIZE, (64, 64, 64)), icc_profile=_with_gamma_one()))
    assert shown.getpixel((10, 10))[0] > 120  # a quarter of the light is 137 in sRGB


def _with_gamma_one() -> bytes:
    """sRGB's profile with linear curves: the tags rTRC, gTRC and bTRC say gamma 1."""
    data = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    count = int.from_bytes(data[128:132], "big")
    for number in range(count):
        at = 132 + 12 * number
        if bytes(data[at : at + 4]) in {b"rTRC", b"gTRC", b"bTRC"}:
            place = int.from_bytes(data[at + 4 : at + 8], "big")
            data[place : place + 12] = b"curv" + bytes(4) + (0).to_bytes(4, "big")  # no entry: the identity
    return bytes(data)


def test_ten_bits_become_eight() -> None:
    values = np.full((64, 96, 3), 0x8000, dtype=np.uint16)
    out = io.BytesIO()
    pillow_heif.from_bytes("RGB;16", SIZE, values.tobytes()).save(out, quality=-1, chroma=444)
    shown = decode(out.getvalue())
    assert shown.mode == "RGB"
    assert abs(shown.getpixel((10, 10))[0] - 128) <= 2


def test_the_main_picture_of_several_is_shown() -> None:
    data = heic(halves("green", "green"), save_all=True, append_images=[halves()], primary_index=1)
    assert decode(data).getpixel((5, 5))[0] > 200


def test_a_cut_file_is_undecodable() -> None:
    data = heic(halves())
    with pytest.raises(Undecodable):
        decode(data[:-100])
