"""A grid that was ordered, with the pictures of its cells, and the orders that draw cells again that failed."""

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from giornata.domain.generation.picture import PictureState
from giornata.domain.jobs.job import TERMINAL, JobState
from giornata.protocol.generation.expand import planned_pictures
from giornata.protocol.generation.grid import GRID_KIND, GridSpec, grid_cell
from giornata.protocol.generation.picture_fields import PictureFields
from giornata.protocol.generation.specs import GENERATE_KIND, MAX_PICTURES
from giornata.protocol.jobs import Job
from giornata.protocol.orders.order_pictures import OrderPicture

RETRIED_GRID, RETRIED_CELLS = "retries-grid", "retries-cells"
"""Labels of an order that draws cells of a grid again: the grid's id, and the cells' numbers, such as `3,17-40`."""
LONGEST_CELLS = 256
"""Characters of the numbers, which a label has to hold."""
NOT_DRAWN = frozenset({PictureState.FAILED, PictureState.CANCELED})
BLOCKED = "blocked"
_SPAN = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", re.ASCII)
PicturePlace = tuple[str, int]
"""An order, and the number of a picture in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridRetry:
    """An order that draws some cells of a grid again. Its pictures are those of the cells, in their order."""

    id: str
    state: JobState
    cells: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnCell:
    """One cell of a grid in its present state. `order` and `picture` name the picture that fills the cell."""

    number: int
    places: tuple[int, ...]
    repeat: int
    labels: tuple[str, ...]
    seed: int
    prompt: str | None
    state: PictureState
    blocked: bool
    error: str | None
    order: str
    picture: int
    file: str | None

    @property
    def word(self) -> str:
        """The state in one word."""
        return BLOCKED if self.blocked else str(self.state)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnGrid:
    """A grid's order, and the orders that draw some of its cells again, with cells by number: all, or a part."""

    job: Job
    retries: tuple[GridRetry, ...]
    spec: GridSpec
    cells: tuple[DrawnCell, ...]

    @property
    def not_drawn(self) -> tuple[DrawnCell, ...]:
        """The cells that have no picture, because it failed or was canceled."""
        return tuple(cell for cell in self.cells if cell.state in NOT_DRAWN)

    @property
    def active(self) -> tuple[str, ...]:
        """The ids of the orders that have not ended."""
        orders = ((self.job.id, self.job.state), *((each.id, each.state) for each in self.retries))
        return tuple(order for order, state in orders if state not in TERMINAL)


def retry_of(order: str, state: JobState, cells: str | None) -> GridRetry:
    """Return an order with the cells that its label names. A label that names none stands for no cell."""
    return GridRetry(id=order, state=state, cells=cells_of(cells or ""))


def place_of(grid: str, retries: Iterable[GridRetry], numbers: Iterable[int]) -> dict[int, PicturePlace]:
    """Return by cell which picture fills it: that of the latest order. `retries` are in the order of submission."""
    found = {number: (grid, number) for number in numbers}
    for retry in retries:
        found |= {cell: (retry.id, place) for place, cell in enumerate(retry.cells) if cell in found}
    return found


def drawn_cell(spec: GridSpec, number: int, order: str, picture: OrderPicture) -> DrawnCell:
    """Return the cell with the picture of an order that fills it."""
    cell = grid_cell(spec, number)
    return DrawnCell(
        number=number,
        places=cell.places,
        repeat=cell.repeat,
        labels=cell.labels,
        seed=picture.seed,
        prompt=picture.prompt,
        state=picture.state,
        blocked=BLOCKED in picture.flags,
        error=picture.error,
        order=order,
        picture=picture.number,
        file=picture.filename if picture.request is not None else None,
    )


def drawn_cells(
    spec: GridSpec, places: Mapping[int, PicturePlace], pictures: Mapping[PicturePlace, OrderPicture], grid: str
) -> tuple[DrawnCell, ...]:
    """Return the cells by number. A picture that is not there leaves the cell as the grid itself has drawn it."""
    found = ((number, place if place in pictures else (grid, number)) for number, place in sorted(places.items()))
    return tuple(drawn_cell(spec, number, place[0], pictures[place]) for number, place in found)


def cells_of(text: str) -> tuple[int, ...]:
    """Return the numbers in `3,17-40`; none for any other text, and for more than a grid has."""
    found: list[int] = []
    for part in text.split(","):
        span = _SPAN.fullmatch(part.strip())
        if span is None:
            return ()
        first = int(span[1])
        found += range(first, min(int(span[2] or first), first + MAX_PICTURES) + 1)
        if len(found) > MAX_PICTURES:
            return ()
    return tuple(dict.fromkeys(found))


def named_cells(numbers: Iterable[int]) -> str:
    """Return the numbers as `3,17-40`: all of them, or the first ones that a label can hold."""
    ordered = sorted(set(numbers))
    breaks = [place for place, (one, two) in enumerate(pairwise(ordered), start=1) if two != one + 1]
    text = ""
    for first, last in pairwise([0, *breaks, len(ordered)] if ordered else []):
        span = f"{ordered[first]}" if last - first == 1 else f"{ordered[first]}-{ordered[last - 1]}"
        longer = f"{text},{span}" if text else span
        if len(longer) > LONGEST_CELLS:
            break
        text = longer
    return text


def retry_fields(grid: DrawnGrid, numbers: Iterable[int]) -> dict[str, Any]:
    """Return the fields of the job that draws these cells again, each with the seed and the settings that it had.

    Of many cells far apart the first ones are drawn, as many as its label can name.
    """
    job, named = grid.job, named_cells(numbers)
    wanted = set(cells_of(named))
    spec = {name: job.spec[name] for name in PictureFields.model_fields if job.spec.get(name) is not None}
    planned = (each for each in planned_pictures(GRID_KIND, job.spec) if each.number in wanted)
    spec["pictures"] = [{**each.differs, "seed": each.seed} for each in planned]
    return {
        "kind": GENERATE_KIND,
        "spec": spec,
        "name": None if job.name == job.id else job.name,
        "priority": job.priority,
        "labels": {RETRIED_GRID: job.id, RETRIED_CELLS: named},
        "min_vram_bytes": job.min_vram_bytes or None,
    }


def retry_key(grid: DrawnGrid, numbers: Sequence[int]) -> str:
    """Return the idempotency key of a retry: two requests at the same time make one order."""
    return f"{grid.job.id}-retry-{len(grid.retries) + 1}-{min(numbers, default=0)}-{len(numbers)}"


def cell_table(grid: DrawnGrid) -> str:
    """Return the cells as CSV: number, a column for each axis, repeat, seed, state, file, error, prompt."""
    written = io.StringIO()
    titles = [axis.title for axis in grid.spec.axes]
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(["number", *titles, "repeat", "seed", "state", "file", "error", "prompt"])
    for cell in grid.cells:
        said = (cell.seed, cell.word, cell.file or "", cell.error or "", cell.prompt or "")
        writer.writerow([cell.number, *cell.labels, cell.repeat, *said])
    return written.getvalue()


def cells_as_json(grid: DrawnGrid) -> str:
    """Return the grid as JSON: its orders, its axes with their values, and its cells."""
    told = {
        "grid": grid.job.id,
        "name": grid.job.name,
        "retries": [each.id for each in grid.retries],
        "axes": [axis.model_dump(mode="json") | {"title": axis.title} for axis in grid.spec.axes],
        "num_images_per_prompt": grid.spec.num_images_per_prompt,
        "cells": [cell_as_json(cell) for cell in grid.cells],
    }
    return json.dumps(told, indent=1, ensure_ascii=False) + "\n"


def cell_as_json(cell: DrawnCell) -> dict[str, Any]:
    """Return one cell as an object of JSON."""
    names = ("number", "repeat", "seed", "prompt", "error", "order", "picture", "file")
    told = {name: getattr(cell, name) for name in names}
    return {**told, "labels": list(cell.labels), "state": cell.word}


def count_cells(cells: Iterable[DrawnCell]) -> Iterator[tuple[str, int]]:
    """Yield each state with the number of cells in it, by the states' names."""
    words = [cell.word for cell in cells]
    yield from ((word, words.count(word)) for word in sorted(set(words)))
