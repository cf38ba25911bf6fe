"""The cells of a grid that was ordered, with their pictures; cells that failed and were ordered again have the later
picture."""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from giornata.client import Client
from giornata.domain.errors import Fault, GiornataError, InvalidInput
from giornata.domain.job import TERMINAL
from giornata.domain.picture import PictureState
from giornata.protocol.generation.expand import planned_pictures
from giornata.protocol.generation.grid import GRID_KIND, GridSpec, grid_cells
from giornata.protocol.generation.picture_fields import PictureFields
from giornata.protocol.generation.specs import GENERATE_KIND
from giornata.protocol.jobs import Job
from giornata.protocol.order_pictures import OrderPicture

RETRIES = "retries-grid"
"""The label of an order that draws failed cells again: the id of the grid."""
NOT_DRAWN = frozenset({PictureState.FAILED, PictureState.CANCELED})
BLOCKED = "blocked"


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
    """A grid's order and the orders that drew some of its cells again, with all cells by number."""

    job: Job
    retries: tuple[Job, ...]
    spec: GridSpec
    cells: tuple[DrawnCell, ...]

    @property
    def not_drawn(self) -> tuple[DrawnCell, ...]:
        """The cells that have no picture, because it failed or was canceled."""
        return tuple(cell for cell in self.cells if cell.state in NOT_DRAWN)


def read_grid(client: Client, job: Job) -> DrawnGrid:
    """Return a grid with its cells as they are now. Raises InvalidInput for a job of another kind."""
    if job.kind != GRID_KIND:
        message = f"{job.id} is a job of kind {job.kind}, and no grid"
        raise InvalidInput([Fault(where="JOB", message=message, hint="give the job that giornata grid has made")])
    spec = GridSpec.model_validate(job.spec)
    cells = [
        _filled(cell.number, cell.places, cell.repeat, cell.labels, job.id, picture)
        for cell, picture in zip(grid_cells(spec), client.pictures(job.id), strict=True)
    ]
    retries = sorted(client.jobs(kind=GENERATE_KIND, labels={RETRIES: job.id}), key=lambda each: each.created_at)
    for retry in retries:
        _fill_again(cells, retry.id, list(client.pictures(retry.id)))
    return DrawnGrid(job=job, retries=tuple(retries), spec=spec, cells=tuple(cells))


def _filled(
    number: int, places: tuple[int, ...], repeat: int, labels: tuple[str, ...], order: str, picture: OrderPicture
) -> DrawnCell:
    return DrawnCell(
        number=number,
        places=places,
        repeat=repeat,
        labels=labels,
        seed=picture.seed,
        prompt=picture.prompt,
        state=picture.state,
        blocked=BLOCKED in picture.flags,
        error=picture.error,
        order=order,
        picture=picture.number,
        file=picture.filename if picture.request is not None else None,
    )


def _fill_again(cells: list[DrawnCell], order: str, pictures: Sequence[OrderPicture]) -> None:
    """Put the pictures of a retry into the cells that had none when it was ordered: all of them, by number."""
    empty = [cell for cell in cells if cell.state in NOT_DRAWN]
    if len(empty) != len(pictures):
        raise GiornataError(f"{order} has {len(pictures)} pictures for {len(empty)} cells without one")
    for cell, picture in zip(empty, pictures, strict=True):
        cells[cell.number] = _filled(cell.number, cell.places, cell.repeat, cell.labels, order, picture)


def order_again(client: Client, grid: DrawnGrid) -> Job | None:
    """Order the cells that failed or were canceled once more; None when there is none.

    A cell has the seed and the settings that it had. Raises InvalidInput while cells are still being drawn. Two calls
    at the same time make one order.
    """
    if busy := next((each for each in (grid.job, *grid.retries) if each.state not in TERMINAL), None):
        message = f"{busy.id} is {busy.state}, and may still draw them"
        raise InvalidInput([Fault(where="--retry", message=message, hint="wait for its end, or cancel it")])
    wanted = {cell.number for cell in grid.not_drawn}
    if not wanted:
        return None
    job = grid.job
    shared = {name: job.spec[name] for name in PictureFields.model_fields if job.spec.get(name) is not None}
    planned = (each for each in planned_pictures(GRID_KIND, job.spec) if each.number in wanted)
    shared["pictures"] = [{**each.differs, "seed": each.seed} for each in planned]
    return client.submit(
        shared,
        kind=GENERATE_KIND,
        name=None if job.name == job.id else job.name,
        priority=job.priority,
        labels={RETRIES: job.id},
        min_vram_bytes=job.min_vram_bytes or None,
        idempotency_key=f"{job.id}-retry-{len(grid.retries) + 1}",
    )


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


def tally(cells: Iterable[DrawnCell]) -> Iterator[tuple[str, int]]:
    """Yield each state with the number of cells in it, by the states' names."""
    words = [cell.word for cell in cells]
    yield from ((word, words.count(word)) for word in sorted(set(words)))
