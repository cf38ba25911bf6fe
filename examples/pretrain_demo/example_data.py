"""Captioned pictures of shapes to try an ingest: `python -m examples.pretrain_demo.example_data FOLDER`.

Some rows are *odd*: each tells why an ingest must refuse it. Equal arguments give equal bytes (with one version of
PIL and pyarrow).
"""

import argparse
import hashlib
import io
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from giornata.diffusion.shapes import pictures
from giornata.pretrain.data.examination import Refusal

SIDES = ((1.0, 1.0), (1.5, 1.0), (1.0, 1.5), (1.25, 1.25), (2.0, 1.0), (1.0, 1.25))  # width, height; of `side_px`
ENCODINGS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("jpg", {"quality": 90}),
    ("png", {}),
    ("webp", {"lossless": True}),
    ("jpg", {"progressive": True}),
)
ROW_GROUP = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleRow:
    """A picture's bytes, its caption as the source has it, and the reason to refuse it (None: it must be kept).

    `source` and `place` are the row's names in the quarantine.
    """

    image: bytes | None
    suffix: str
    caption: str | float | None
    refusal: Refusal | None = None
    source: str = ""
    place: str = ""


OddRow = Callable[[Image.Image, str, ExampleRow], ExampleRow]
"""Makes an odd row of a picture, its caption, and the first row of the data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenRows:
    """The rows that were written."""

    folder: Path
    rows: tuple[ExampleRow, ...]

    @property
    def kept(self) -> dict[str, ExampleRow]:
        """The rows that an ingest must keep, by the sha256 of their pictures' bytes."""
        return {hashlib.sha256(row.image).hexdigest(): row for row in self.rows if row.image and not row.refusal}

    @property
    def refused(self) -> dict[str, int]:
        """The number of rows that an ingest must refuse, by reason."""
        return dict(sorted(Counter(str(row.refusal) for row in self.rows if row.refusal).items()))


def encoded(image: Image.Image, suffix: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, {"jpg": "JPEG", "tif": "TIFF"}.get(suffix, suffix.upper()), **options)
    return file.getvalue()


def _truncated(image: Image.Image, caption: str, _first: ExampleRow) -> ExampleRow:
    content = encoded(image, "jpg")
    return ExampleRow(image=content[: len(content) * 2 // 3], suffix="jpg", caption=caption, refusal=Refusal.DAMAGED)


def _web_page(_image: Image.Image, caption: str, _first: ExampleRow) -> ExampleRow:
    page = f"<html><title>404</title>{caption} is gone</html>".encode()
    return ExampleRow(image=page, suffix="jpg", caption=caption, refusal=Refusal.NOT_A_PICTURE)


def _tiny(image: Image.Image, caption: str, _first: ExampleRow) -> ExampleRow:
    content = encoded(image.resize((image.width // 4, image.height // 4)), "png")
    return ExampleRow(image=content, suffix="png", caption=caption, refusal=Refusal.TOO_SMALL)


def _no_caption(image: Image.Image, _caption: str, _first: ExampleRow) -> ExampleRow:
    return ExampleRow(image=encoded(image, "png"), suffix="png", caption="  \n", refusal=Refusal.NO_CAPTION)


def _again(_image: Image.Image, caption: str, first: ExampleRow) -> ExampleRow:
    return ExampleRow(image=first.image, suffix=first.suffix, caption=caption, refusal=Refusal.DUPLICATE)


ODDITIES: Mapping[str, OddRow] = {
    "truncated JPEG": _truncated,
    "a web page": _web_page,
    "tiny": _tiny,
    "caption of spaces": _no_caption,
    "equal bytes": _again,
}


def write_example(
    folder: Path, *, rows: int, oddities: int | None = None, files: int = 2, side_px: int = 64, seed: int = 0
) -> WrittenRows:
    """Draw `rows` good pictures with their captions, and among them `oddities` odd ones (None: one of each sort).

    `side_px` is the shortest side of a good picture: ingest with at most that as `min_side_px`.
    """
    made = drawn_rows(rows, oddities, side_px=side_px, seed=seed)
    folder.mkdir(parents=True, exist_ok=True)
    per_file = -(-len(made) // files)
    for number, start in enumerate(range(0, len(made), per_file)):
        write_parquet(folder, number, made[start : start + per_file])
    return WrittenRows(folder=folder, rows=tuple(made))


def write_parquet(folder: Path, number: int, rows: Sequence[ExampleRow]) -> str:
    """Write the file of this number, with a column that no ingest reads, and return its name.

    A caption that is no text is null.
    """
    captions = [row.caption if isinstance(row.caption, str) else None for row in rows]
    table = {
        "url": [f"https://example.org/{number}/{place}" for place in range(len(rows))],
        "caption": pa.array(captions, pa.string()),
        "jpg": pa.array([row.image for row in rows], pa.binary()),
    }
    name = f"part-{number:05}.parquet"
    pq.write_table(pa.table(table), folder / name, row_group_size=ROW_GROUP)
    return name


def drawn_rows(
    rows: int, oddities: int | None, *, side_px: int, seed: int, sorts: Mapping[str, OddRow] = ODDITIES
) -> list[ExampleRow]:
    """Good rows, with odd ones of all `sorts` evenly among them. The first row is a good one."""
    made: list[ExampleRow] = []
    odd, odd_so_far = list(sorts.values()), 0
    for index in range(rows):
        suffix, options = ENCODINGS[index % len(ENCODINGS)]
        content = encoded(_picture(index, side_px=side_px, seed=seed), suffix, **options)
        made.append(ExampleRow(image=content, suffix=suffix, caption=pictures.caption_of(index, seed=seed)))
        while odd_so_far < (len(odd) if oddities is None else oddities) * (index + 1) // rows:
            number = rows + odd_so_far
            image = _picture(number, side_px=side_px, seed=seed)
            made.append(odd[odd_so_far % len(odd)](image, pictures.caption_of(number, seed=seed), made[0]))
            odd_so_far += 1
    return made


def _picture(index: int, *, side_px: int, seed: int) -> Image.Image:
    """A shape on a rectangle of one of several proportions, anywhere in it."""
    chance = random.Random(f"{seed}:example:{index}")
    width, height = (round(factor * side_px) for factor in chance.choice(SIDES))
    shape = pictures.TRAINED[index % len(pictures.TRAINED)]
    square = pictures.draw_shape(shape, chance, size_px=min(width, height))
    whole = Image.new("RGB", (width, height), square.getpixel((0, 0)))
    whole.paste(square, (chance.randint(0, width - square.width), chance.randint(0, height - square.height)))
    return whole


def main(arguments: Sequence[str] | None = None) -> None:
    """Write example data into a folder and print the number of rows by reason."""
    parser = argparse.ArgumentParser(description="Draw captioned pictures of shapes, some of them broken.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=200, help="good pictures (200)")
    parser.add_argument("--oddities", type=int, help="odd ones among them (one of each sort)")
    parser.add_argument("--files", type=int, default=2, help="files that they lie in (2)")
    parser.add_argument("--side-px", type=int, default=64, help="shortest side of a good picture (64)")
    parser.add_argument("--seed", type=int, default=0)
    chosen = vars(parser.parse_args(arguments))
    example = write_example(chosen.pop("folder"), **chosen)
    print(f"{len(example.rows)} rows in {example.folder}, {len(example.kept)} good: refused {example.refused}")


if __name__ == "__main__":
    main()
