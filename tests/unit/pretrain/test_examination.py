"""What is found out about one row, and what the filters let through."""

import hashlib
from collections.abc import Iterator

import numpy as np
import pytest
from examples.pretrain_demo.example_data import ExampleRow, encoded
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from tests.fixtures.pretrain_oddities import ODDITIES

from giornata.pretrain.data import columns
from giornata.pretrain.data.examination import (
    DETAIL,
    ORDINAL,
    PLACE,
    SOURCE,
    Refusal,
    examine,
    examined_rows,
    refusal_of,
)
from giornata.pretrain.data.source_rows import Raw, SourceDamaged, captions_of
from giornata.protocol.pretraining import Ingest

OPTIONS = Ingest()
PICTURE = Image.effect_noise((96, 64), 80).convert("RGB")


def raw(image: bytes | None, caption: str = "a cat") -> Raw:
    return Raw(source="file", place="7", image=image, captions=(caption,))


def reason(options: Ingest, *, size: tuple[int, int] = (100, 100), caption: str = "a cat") -> Refusal | None:
    found = refusal_of(Image.new("RGB", size), "RGB", caption, options)
    return found.reason if found else None


@pytest.mark.parametrize("name", sorted(set(ODDITIES) - {"equal bytes"}))
def test_every_oddity_becomes_what_it_must(name: str) -> None:
    first = ExampleRow(image=b"", suffix="jpg", caption="")
    row = ODDITIES[name](PICTURE.copy(), "a dog", first)
    found = examine(raw(row.image, "".join(captions_of([row.caption], Ingest()))), OPTIONS)
    assert (found.reason if found else None) == row.refusal


def test_examination_of_good_row_gives_sha256_key() -> None:
    content = encoded(PICTURE, "png")
    (row,) = examined_rows([raw(content)], OPTIONS, piece=0, name="a.tar")
    assert (row[columns.KEY], row[columns.REASON]) == (hashlib.sha256(content).digest(), "")


@pytest.mark.parametrize("chunk", [b"IDAT", b"teXt"])
def test_a_png_with_a_wrong_checksum_is_damaged(chunk: bytes) -> None:
    about = PngInfo()
    about.add(b"teXt", b"comment\0after the pixels", after_idat=True)
    content = bytearray(encoded(PICTURE, "png", pnginfo=about))
    assert examine(raw(bytes(content)), OPTIONS) is None
    place = content.index(chunk)
    content[place + 4 + int.from_bytes(content[place - 4 : place], "big")] ^= 1
    found = examine(raw(bytes(content)), OPTIONS)
    assert found is not None
    assert found.reason is Refusal.DAMAGED
    assert "broken PNG file" in found.detail


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_picture_of_values_that_are_not_finite_is_damaged(value: float) -> None:
    levels = np.full((80, 80), 0.5, np.float32)
    assert examine(raw(encoded(Image.fromarray(levels), "tif")), OPTIONS) is None
    levels[3, 5] = value
    found = examine(raw(encoded(Image.fromarray(levels), "tif")), OPTIONS)
    assert found is not None
    assert (found.reason, found.detail) == (
        Refusal.DAMAGED,
        "has pixels that are not finite numbers (NaN or infinite)",
    )


@pytest.mark.parametrize(
    "caption", ["\u200b\u200d\ufeff", "\x00\x07\x1b", "\u2060 \u00ad\n\u202e", "\u3164", "\u0301"]
)
def test_a_caption_without_a_visible_character_is_none(caption: str) -> None:
    assert captions_of([caption], Ingest()) == ()
    assert captions_of([caption, "a cat"], Ingest(max_captions=5)) == ("a cat",)
    refused = examine(raw(encoded(PICTURE, "png"), "".join(captions_of([caption], Ingest()))), OPTIONS)
    assert refused is not None
    assert refused.reason is Refusal.NO_CAPTION


def test_a_caption_keeps_its_invisible_characters() -> None:
    assert captions_of(["\U0001f469\u200d\U0001f680 in space"], Ingest()) == ("\U0001f469\u200d\U0001f680 in space",)


def test_a_turned_picture_has_the_size_that_a_viewer_shows() -> None:
    row = ODDITIES["turned by EXIF"](PICTURE, "", ExampleRow(image=b"", suffix="jpg", caption=""))
    found = examine(raw(row.image), Ingest(min_side_px=65))
    assert found == (Refusal.TOO_SMALL, "64 × 96")


@pytest.mark.parametrize(("mode", "suffix"), [("CMYK", "jpg"), ("P", "png"), ("I;16", "png"), ("L", "jpg")])
def test_rows_of_other_image_modes_are_kept_unless_modes_are_limited(mode: str, suffix: str) -> None:
    content = encoded(PICTURE.convert("L" if mode == "I;16" else mode).convert(mode), suffix)
    assert examine(raw(content), OPTIONS) is None
    wanted = Ingest(modes=("RGB",))
    found = examine(raw(content), wanted)
    assert found is not None
    assert (found.reason, found.detail) == (Refusal.MODE, f"is {mode}")
    assert examine(raw(content), Ingest(modes=("RGB", mode))) is None
    assert examine(raw(encoded(PICTURE, suffix)), wanted) is None


def test_too_many_pixels_are_not_decoded() -> None:
    huge = b"P5 30000 30000 255\n" + bytes(100)
    assert examine(raw(huge), OPTIONS).reason is Refusal.TOO_MANY_PIXELS  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("size", "caption", "expected"),
    [
        ((100, 100), "a cat", None),
        ((64, 100), "a cat", None),
        ((63, 100), "a cat", Refusal.TOO_SMALL),
        ((100, 63), "a cat", Refusal.TOO_SMALL),
        ((400, 100), "a cat", None),
        ((401, 100), "a cat", Refusal.EXTREME_ASPECT_RATIO),
        ((100, 401), "a cat", Refusal.EXTREME_ASPECT_RATIO),
        ((100, 100), "abc", None),
        ((100, 100), "ab", Refusal.NO_CAPTION),
        ((100, 100), "", Refusal.NO_CAPTION),
    ],
)
def test_filters_refuse_what_is_beyond_the_limit_and_not_what_is_on_it(
    size: tuple[int, int], caption: str, expected: Refusal | None
) -> None:
    options = Ingest(min_side_px=64, max_aspect_ratio=4.0, min_caption_chars=3)
    assert reason(options, size=size, caption=caption) == expected


def test_captions_are_not_needed_when_none_are_asked_for() -> None:
    assert reason(Ingest(min_caption_chars=0), caption="") is None


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["one", "two", "one", "three"], ("one", "two")),
        ([None, "two"], ("two",)),
        (["  ", "\n two \n"], ("two",)),
        ([float("nan"), 3, ["one", None, "of a list"]], ("one", "of a list")),
        ([b"\xff\xfe", "caf\u00e9".encode()], ("caf\u00e9",)),
        (["of", "a", "short one"], ("short one",)),
        (["of", "a"], ("of",)),
        ([], ()),
    ],
)
def test_captions_that_say_enough_are_taken_once_each(values: list[object], expected: tuple[str, ...]) -> None:
    assert captions_of(values, Ingest(min_caption_chars=3, max_captions=2)) == expected
    assert captions_of(values, Ingest(min_caption_chars=3)) == expected[:1]


def test_a_source_that_breaks_off_says_so_after_its_good_rows() -> None:
    def rows() -> Iterator[Raw]:
        yield raw(encoded(PICTURE, "png"))
        yield raw(None)
        raise SourceDamaged("unexpected end")

    found = list(examined_rows(rows(), OPTIONS, piece=3, name="b.tar"))
    assert [row[columns.REASON] for row in found] == ["", "empty", "source_damaged"]
    assert [row[ORDINAL] for row in found] == [0, 1, 2]
    assert (found[2][SOURCE], found[2][PLACE], found[2][DETAIL]) == ("b.tar", "", "unexpected end")
