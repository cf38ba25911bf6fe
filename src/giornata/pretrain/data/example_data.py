"""Captioned pictures of shapes as Parquet, for the demo, tests, benchmarks and whoever tries an ingest:
`python -m giornata.pretrain.data.example_data FOLDER`.

Among them are *oddities*: pictures that are broken or unusual in a known way. Every row says what must become of it.
The same arguments give the same bytes (with one version of PIL and pyarrow).
"""

import argparse
import hashlib
import io
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image, ImageOps

from giornata.diffusion.shapes import pictures
from giornata.pretrain.data.filters import Refusal

SIDES = ((1.0, 1.0), (1.5, 1.0), (1.0, 1.5), (1.25, 1.25), (2.0, 1.0), (1.0, 1.25))  # width, height; of `side_px`
ENCODINGS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("jpg", {"quality": 90}),
    ("png", {}),
    ("webp", {"lossless": True}),
    ("jpg", {"progressive": True}),
)
ROW_GROUP = 16
_ORIENTATION_TAG, _LIES_ON_ITS_SIDE = 0x0112, 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A picture's bytes, its caption as the source has it, and why it must be refused (None: it must be kept).

    `source` and `place` say where it lies, as the quarantine names it.
    """

    image: bytes | None
    suffix: str
    caption: str | float | None
    refusal: Refusal | None = None
    source: str = ""
    place: str = ""


Shares = Sequence[Sequence[Row]]


def write_parquet(folder: Path, shares: Shares) -> list[Row]:
    """Columns `jpg`, `caption` and one that is of no concern. A caption that is no text is null here."""
    written: list[Row] = []
    for number, rows in enumerate(shares):
        name = f"part-{number:05}.parquet"
        columns = {
            "url": [f"https://example.org/{number}/{place}" for place in range(len(rows))],
            "caption": pa.array([text_of(row) for row in rows], pa.string()),
            "jpg": pa.array([row.image for row in rows], pa.binary()),
        }
        pq.write_table(pa.table(columns), folder / name, row_group_size=ROW_GROUP)
        written += placed(rows, name)
    return written


def text_of(row: Row) -> str | None:
    """The caption, where it is text."""
    return row.caption if isinstance(row.caption, str) else None


def placed(rows: Sequence[Row], name: str) -> list[Row]:
    """The rows of a table, by their numbers in the file."""
    return [replace(row, source=name, place=str(place)) for place, row in enumerate(rows)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """What was written."""

    folder: Path
    rows: tuple[Row, ...]

    @property
    def kept(self) -> dict[str, Row]:
        """What an ingest must keep: sha256 of the picture's bytes to the row."""
        return {hashlib.sha256(row.image).hexdigest(): row for row in self.rows if row.image and not row.refusal}

    @property
    def refused(self) -> dict[str, int]:
        """What it must not: reason to number of rows."""
        return dict(sorted(Counter(str(row.refusal) for row in self.rows if row.refusal).items()))


def write_example(
    folder: Path,
    *,
    rows: int,
    oddities: int | None = None,
    files: int = 2,
    side_px: int = 64,
    seed: int = 0,
    write: Callable[[Path, Shares], list[Row]] = write_parquet,
) -> Example:
    """Draw `rows` good pictures with their captions, and among them `oddities` odd ones (None: one of each sort).

    `side_px` is the shortest side of a good picture: ingest with at most that as `min_side_px`, and with at least 3
    as `max_aspect_ratio`.
    """
    count = len(ODDITIES) if oddities is None else oddities
    made = _drawn(rows, count, side_px=side_px, seed=seed)
    folder.mkdir(parents=True, exist_ok=True)
    per_file = -(-len(made) // files)
    shares = [made[start : start + per_file] for start in range(0, len(made), per_file)]
    written = write(folder, shares)
    return Example(folder=folder, rows=tuple(written))


def _drawn(rows: int, oddities: int, *, side_px: int, seed: int) -> list[Row]:
    """Good and odd rows, evenly mixed; the first is a good one, which duplicates repeat."""
    made: list[Row] = []
    names, odd_so_far = list(ODDITIES), 0
    for index in range(rows):
        made.append(_good(index, side_px=side_px, seed=seed))
        while odd_so_far < oddities * (index + 1) // rows:
            name = names[odd_so_far % len(names)]
            image = _picture(rows + odd_so_far, side_px=side_px, seed=seed)
            made.append(ODDITIES[name](image, pictures.caption_of(rows + odd_so_far, seed=seed), made[0]))
            odd_so_far += 1
    return made


def _good(index: int, *, side_px: int, seed: int) -> Row:
    suffix, options = ENCODINGS[index % len(ENCODINGS)]
    content = encoded(_picture(index, side_px=side_px, seed=seed), suffix, **options)
    return Row(image=content, suffix=suffix, caption=pictures.caption_of(index, seed=seed))


def _picture(index: int, *, side_px: int, seed: int) -> Image.Image:
    """A shape on a rectangle of one of several proportions, anywhere in it."""
    chance = random.Random(f"{seed}:example:{index}")
    width, height = (round(factor * side_px) for factor in chance.choice(SIDES))
    shape = pictures.TRAINED[index % len(pictures.TRAINED)]
    square = pictures.draw_shape(shape, chance, size_px=min(width, height))
    whole = Image.new("RGB", (width, height), square.getpixel((0, 0)))
    whole.paste(square, (chance.randint(0, width - square.width), chance.randint(0, height - square.height)))
    return whole


def encoded(image: Image.Image, suffix: str, **options: Any) -> bytes:
    """As a file of that suffix."""
    file = io.BytesIO()
    image.save(file, {"jpg": "JPEG", "tif": "TIFF"}.get(suffix, suffix.upper()), **options)
    return file.getvalue()


# ---- oddities: broken ones ----


def _truncated_jpeg(image: Image.Image, caption: str, _first: Row) -> Row:
    content = encoded(image, "jpg")
    return Row(image=content[: len(content) * 2 // 3], suffix="jpg", caption=caption, refusal=Refusal.DAMAGED)


def _truncated_png(image: Image.Image, caption: str, _first: Row) -> Row:
    content = encoded(image, "png")
    return Row(image=content[: len(content) // 2], suffix="png", caption=caption, refusal=Refusal.DAMAGED)


def _web_page(_image: Image.Image, caption: str, _first: Row) -> Row:
    page = f"<html><title>404</title>{caption} is gone</html>".encode()
    return Row(image=page, suffix="jpg", caption=caption, refusal=Refusal.NOT_A_PICTURE)


def _no_bytes(_image: Image.Image, caption: str, _first: Row) -> Row:
    return Row(image=b"", suffix="jpg", caption=caption, refusal=Refusal.EMPTY)


def _no_picture(_image: Image.Image, caption: str, _first: Row) -> Row:
    return Row(image=None, suffix="jpg", caption=caption, refusal=Refusal.EMPTY)


def _tiny(image: Image.Image, caption: str, _first: Row) -> Row:
    content = encoded(image.resize((image.width // 4, image.height // 4)), "png")
    return Row(image=content, suffix="png", caption=caption, refusal=Refusal.TOO_SMALL)


def _ribbon(image: Image.Image, caption: str, _first: Row) -> Row:
    content = encoded(image.resize((10 * image.height, image.height)), "jpg")
    return Row(image=content, suffix="jpg", caption=caption, refusal=Refusal.EXTREME_ASPECT_RATIO)


def _captioned_with(words: str | float | None) -> Callable[[Image.Image, str, Row], Row]:
    def make(image: Image.Image, _caption: str, _first: Row) -> Row:
        return Row(image=encoded(image, "png"), suffix="png", caption=words, refusal=Refusal.NO_CAPTION)

    return make


def _again(_image: Image.Image, caption: str, first: Row) -> Row:
    return Row(image=first.image, suffix=first.suffix, caption=caption, refusal=Refusal.DUPLICATE)


# ---- oddities: unusual ones, which are kept ----


def _four_inks(image: Image.Image, caption: str, _first: Row) -> Row:
    return Row(image=encoded(image.convert("CMYK"), "jpg"), suffix="jpg", caption=caption)


def _lab_colours(image: Image.Image, caption: str, _first: Row) -> Row:
    lab = Image.frombytes("LAB", image.size, image.tobytes())
    return Row(image=encoded(lab, "tif"), suffix="tif", caption=caption)


def _sixteen_bits(image: Image.Image, caption: str, _first: Row) -> Row:
    deep = ImageOps.grayscale(image).convert("I").point(lambda level: level * 257).convert("I;16")
    return Row(image=encoded(deep, "png"), suffix="png", caption=caption)


def _transparent(image: Image.Image, caption: str, _first: Row) -> Row:
    image.putalpha(128)
    return Row(image=encoded(image, "png"), suffix="png", caption=caption)


def _palette(image: Image.Image, caption: str, _first: Row) -> Row:
    return Row(image=encoded(image.convert("P"), "png", transparency=0), suffix="png", caption=caption)


def _turned(image: Image.Image, caption: str, _first: Row) -> Row:
    exif = Image.Exif()
    exif[_ORIENTATION_TAG] = _LIES_ON_ITS_SIDE
    return Row(image=encoded(image, "jpg", exif=exif), suffix="jpg", caption=caption)


def _wrong_suffix(image: Image.Image, caption: str, _first: Row) -> Row:
    return Row(image=encoded(image, "png"), suffix="jpg", caption=caption)


ODDITIES: dict[str, Callable[[Image.Image, str, Row], Row]] = {
    "truncated JPEG": _truncated_jpeg,
    "CMYK": _four_inks,
    "truncated PNG": _truncated_png,
    "16 bits": _sixteen_bits,
    "a web page": _web_page,
    "transparency": _transparent,
    "no bytes": _no_bytes,
    "palette": _palette,
    "no picture": _no_picture,
    "turned by EXIF": _turned,
    "LAB": _lab_colours,
    "PNG that is called JPEG": _wrong_suffix,
    "tiny": _tiny,
    "ribbon": _ribbon,
    "caption null": _captioned_with(None),
    "caption NaN": _captioned_with(float("nan")),
    "caption empty": _captioned_with(""),
    "caption of spaces": _captioned_with("  \n"),
    "equal bytes": _again,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Write one."""
    parser = argparse.ArgumentParser(description="Draw captioned pictures of shapes, some of them broken.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=200, help="good pictures (200)")
    parser.add_argument("--oddities", type=int, help="odd ones among them (one of each sort)")
    parser.add_argument("--files", type=int, default=2, help="files that they lie in (2)")
    parser.add_argument("--side-px", type=int, default=64, help="shortest side of a good picture (64)")
    parser.add_argument("--seed", type=int, default=0)
    chosen = vars(parser.parse_args(arguments))
    example = write_example(chosen.pop("folder"), **chosen)
    print(f"{len(example.rows)} rows in {example.folder}, {len(example.kept)} good")  # noqa: T201
    for reason, count in example.refused.items():
        print(f"  {count:6}  {reason}")  # noqa: T201


if __name__ == "__main__":
    main()
