"""Draw the labeled sheets of grids: `python -m giornata.diffusion.sampling.grid_sheet PLANS.json`.

The file has a list of sheets: title, subtitle, groups (heading, captions), rows (label, text, and for each group a
list of pictures) and the file `out`. A picture is a `file`, or a `state` in one word for a cell without one. A
file that is no picture is shown as such. The program loads Pillow and no model code.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont, ImageOps

from giornata.diffusion.sampling.grid_layout import (
    EMPTY,
    FAINT,
    MIN_CELL_PX,
    Group,
    SheetRow,
    cell_side_px,
    compose_sheet,
)

MOST_WIDTH_PX = 12_000
LEAST_CELL_PX = 64
WORD_PX = 15
UNREADABLE = "unreadable"


def draw_sheet(plan: Mapping[str, Any]) -> Image.Image:
    """Return the sheet of a plan."""
    groups = [Group(heading=each["heading"], captions=tuple(each["captions"])) for each in plan["groups"]]
    columns = sum(len(group.captions) for group in groups)
    most_px = max(LEAST_CELL_PX, MOST_WIDTH_PX // max(1, columns))
    cell_px = min(most_px, _cell_px(plan["rows"]))
    rows = [
        SheetRow(
            label=row["label"],
            text=row["text"],
            pictures=tuple(tuple(_cell(each, cell_px) for each in group) for group in row["pictures"]),
        )
        for row in plan["rows"]
    ]
    return compose_sheet(rows, groups, title=plan["title"], subtitle=plan["subtitle"], cell_px=cell_px)


def _cell_px(rows: Sequence[Mapping[str, Any]]) -> int:
    """Return the side of a cell that suits the first picture."""
    cells = (cell for row in rows for group in row["pictures"] for cell in group)
    sizes = (picture.size for cell in cells if (picture := _opened(cell.get("file"))) is not None)
    return cell_side_px(max(next(sizes, (MIN_CELL_PX, MIN_CELL_PX))))


def _cell(cell: Mapping[str, str], cell_px: int) -> Image.Image:
    """Return a picture, whole, on a square, or the word of a cell without a picture."""
    picture = _opened(cell.get("file"))
    if picture is not None:
        enlarged = max(picture.size) <= cell_px
        method = Image.Resampling.NEAREST if enlarged else Image.Resampling.LANCZOS
        return ImageOps.pad(picture.convert("RGB"), (cell_px, cell_px), method, color=EMPTY)
    tile = Image.new("RGB", (cell_px, cell_px), EMPTY)
    font = ImageFont.load_default(WORD_PX)
    word = cell.get("state", UNREADABLE)
    ImageDraw.Draw(tile).text((cell_px / 2, cell_px / 2), word, fill=FAINT, font=font, anchor="mm")
    return tile


def _opened(file: str | None) -> Image.Image | None:
    """Return the picture in a file; None without a file, and for one that cannot be read."""
    if file is None:
        return None
    try:
        with Image.open(file) as picture:
            picture.load()
            return picture
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line with the path of the plans."""
    (plans,) = sys.argv[1:] if arguments is None else arguments
    for plan in json.loads(Path(plans).read_text()):
        draw_sheet(plan).save(plan["out"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
