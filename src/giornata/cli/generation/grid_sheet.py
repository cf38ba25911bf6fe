"""The plan of a grid's labeled sheets, and the process that draws them: the command line decodes no picture.

The last axis makes the columns, and the other axes make the rows. A grid of one axis has its values as rows. Columns
of one value are the repeats.
"""

import itertools
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from giornata.cli.tools.model import run_model_code
from giornata.protocol.generation.drawn_grid import DrawnCell, DrawnGrid

PROGRAM = "giornata.diffusion.sampling.grid_sheet"
MOST_ROWS = 40
"""Rows of one sheet; more rows are on further sheets."""
MOST_COLUMNS = 100
SHOWN_REPEATS = 4
SHOWN_REPEATS_OF_ROWS = 10
"""Repeats that a grid of one axis shows, which has no other columns."""


def write_sheets(grid: DrawnGrid, file_of: Callable[[DrawnCell], Path | None], directory: Path) -> list[Path]:
    """Write the grid as `grid.png`, and further rows as `grid-2.png` and so on. `file_of` is where a cell's picture
    lies."""
    plans = list(sheet_plans(grid, file_of))
    names = ["grid.png", *(f"grid-{number}.png" for number in range(2, len(plans) + 1))]
    files = [directory / name for name in names]
    with tempfile.TemporaryDirectory(prefix="giornata-grid-") as folder:
        told = Path(folder) / "plan.json"
        sheets = [{**plan, "out": str(file.absolute())} for plan, file in zip(plans, files, strict=True)]
        told.write_text(json.dumps(sheets))
        run_model_code(PROGRAM, [str(told)])
    return files


def sheet_plans(grid: DrawnGrid, file_of: Callable[[DrawnCell], Path | None]) -> Iterator[dict[str, Any]]:
    """Yield a plan of each sheet, as the program reads it."""
    *row_axes, column_axis = grid.spec.axes if len(grid.spec.axes) > 1 else (grid.spec.axes[0], None)
    repeats = grid.spec.num_images_per_prompt
    shown_repeats = min(repeats, SHOWN_REPEATS_OF_ROWS if column_axis is None else SHOWN_REPEATS)
    values = 1 if column_axis is None else len(column_axis.values)
    shown_values = min(values, max(1, MOST_COLUMNS // shown_repeats))
    cells = {(cell.places, cell.repeat): cell for cell in grid.cells}
    rows = list(itertools.product(*(range(len(axis.values)) for axis in row_axes)))

    def group(places: tuple[int, ...], value: int) -> list[DrawnCell]:
        whole = places if column_axis is None else (*places, value)
        return [cells[whole, repeat] for repeat in range(shown_repeats)]

    groups = [
        {
            "heading": "" if column_axis is None else f"{column_axis.title}: {column_axis.label_of(value)}",
            "captions": _captions([group(places, value) for places in rows]),
        }
        for value in range(shown_values)
    ]
    for first in range(0, len(rows), MOST_ROWS):
        yield {
            "title": "Grid" if grid.job.name == grid.job.id else grid.job.name,
            "subtitle": _subtitle(grid, shown_repeats, shown_values, values),
            "groups": groups,
            "rows": [
                {
                    **_row_words(grid, places),
                    "pictures": [
                        [_shown(cell, file_of) for cell in group(places, value)] for value in range(shown_values)
                    ],
                }
                for places in rows[first : first + MOST_ROWS]
            ],
        }


def _captions(columns: Sequence[Sequence[DrawnCell]]) -> list[str]:
    """Return the seed of each repeat, where all rows have the same."""
    seeds = [{cell.seed for cell in repeat} for repeat in zip(*columns, strict=True)]
    return [f"seed {seed.pop()}" if len(seed) == 1 else "" for seed in seeds]


def _row_words(grid: DrawnGrid, places: tuple[int, ...]) -> dict[str, str]:
    """Return the value of the first axis large, and those of other axes of the rows small."""
    axes = grid.spec.axes
    others = [f"{axes[n].title}: {axes[n].label_of(place)}" for n, place in enumerate(places) if n > 0]
    return {"label": axes[0].label_of(places[0]), "text": ", ".join([axes[0].title, *others])}


def _subtitle(grid: DrawnGrid, repeats: int, values: int, all_values: int) -> str:
    said = [grid.job.id, grid.spec.prompt]
    if repeats < grid.spec.num_images_per_prompt:
        said.append(f"the first {repeats} of {grid.spec.num_images_per_prompt} repeats")
    if values < all_values:
        said.append(f"the first {values} of {all_values} columns")
    return "  ·  ".join(" ".join(each.split())[:200] for each in said)


def _shown(cell: DrawnCell, file_of: Callable[[DrawnCell], Path | None]) -> dict[str, str]:
    file = file_of(cell)
    return {"state": cell.word} if file is None else {"file": str(file.absolute())}
