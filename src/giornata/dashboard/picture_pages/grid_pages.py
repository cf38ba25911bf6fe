"""Grids on the page Generate: the axes of the form, the labeled sheet, and its cells as files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from fastapi import Response

from giornata.control.jobs.grid_cells import draw_cells_again, read_grid
from giornata.dashboard.rendering import render
from giornata.dashboard.visit import SubmittedForm, Visit, action, page, see
from giornata.domain.errors import Fault, InvalidInput, NotFound
from giornata.protocol.generation.axis_texts import axis_of, axis_text, axis_values
from giornata.protocol.generation.drawn_grid import NOT_DRAWN, DrawnCell, DrawnGrid, cell_table, cells_as_json
from giornata.protocol.generation.grid import MAX_AXES, GridSpec, cell_count
from giornata.protocol.project.admin import Scope

ROWS_OF_FORM = range(1, MAX_AXES + 1)
MOST_CELLS = 60
"""Cells that one part of the sheet shows."""
Axis = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class GridSheet:
    """A part of the labeled sheet. The last axis makes the columns, and the other axes the rows; a grid of one axis
    has its values as rows. Each row is its labels, largest first, and its cells; `columns` are the cells' headings.
    """

    titles: str
    columns: Sequence[str]
    rows: Sequence[tuple[Sequence[str], Sequence[DrawnCell | None]]]
    row: int
    rows_in_all: int
    columns_in_all: int


def axes_of(form: SubmittedForm, prompt: str, faults: list[Fault]) -> list[Axis]:
    """Return the axes of the form. A row that is filled by half, or that cannot be read, is in `faults` instead."""
    axes = []
    for row in ROWS_OF_FORM:
        name, text = form.get(f"axis_{row}").strip("{} "), form.get(f"values_{row}")
        if not name and not text:
            continue
        before = len(faults)
        if not name:
            faults.append(Fault(where=f"axis_{row}", message="name a slot of the prompt, or a setting"))
        try:
            values = axis_values(text)
        except ValueError as error:
            faults.append(Fault(where=f"values_{row}", message=str(error)))
            continue
        if not values:
            faults.append(Fault(where=f"values_{row}", message="type values, with commas between them"))
        if len(faults) == before:
            axes.append(axis_of(name, values, prompt))
    return axes


def typed_axes(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the axes of a stored spec as the texts of the form's fields."""
    found = {}
    for row, axis in zip(ROWS_OF_FORM, spec.get("axes", ()), strict=False):
        found[f"axis_{row}"], found[f"values_{row}"] = axis_text(axis)
    return found


def axis_places(form: Mapping[str, Any], faults: Sequence[Fault]) -> dict[str, str]:
    """Return the field of the form by the place of a fault in the spec. Rows that are empty, or of which the form
    itself has a fault, are no axes.
    """
    faulty = {fault.where for fault in faults}
    rows = [(row, (f"axis_{row}", f"values_{row}")) for row in ROWS_OF_FORM]
    used = [row for row, names in rows if faulty.isdisjoint(names) and any(map(form.get, names))]
    found = {f"spec.axes.{number}.values": f"values_{row}" for number, row in enumerate(used)}
    found |= {f"spec.axes.{number}": f"axis_{row}" for number, row in enumerate(used)}
    found |= {name: name for row in ROWS_OF_FORM for name in (f"axis_{row}", f"values_{row}")}
    return found | {"spec.axes": f"axis_{used[0] if used else 1}"}


def show_grid(visit: Visit) -> Response:
    """Show a part of the sheet, which the page loads again while pictures come."""
    return _sheet(visit)


def draw_again(visit: Visit) -> Response:
    """Order the chosen cell again, or all cells that failed."""
    if not visit.may(Scope.GENERATE):
        raise NotFound("there is no such page")
    job_id = visit.path("job_id")
    chosen = [int(each) for each in visit.form.all("cell") if each.isascii() and each.isdigit() and len(each) < 6]
    try:
        draw_cells_again(visit.ctx, visit.caller, job_id, chosen)
    except InvalidInput:
        return see(visit.url("/generate", grid=job_id, said="cells-refused"))
    visit.request.app.state.wakeup.notify()
    return see(visit.url("/generate", grid=job_id, said="cells-ordered"))


def send_table(visit: Visit) -> Response:
    """Send the cells as CSV."""
    grid = read_grid(visit.ctx, visit.caller, visit.path("job_id"))
    return _file(cell_table(grid), "text/csv", "grid.csv")


def send_json(visit: Visit) -> Response:
    """Send the cells, with the axes and their values, as JSON."""
    grid = read_grid(visit.ctx, visit.caller, visit.path("job_id"))
    return _file(cells_as_json(grid), "application/json", "grid.json")


def _file(text: str, media_type: str, name: str) -> Response:
    kept = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(text, media_type=media_type, headers=kept)


def _sheet(visit: Visit) -> Response:
    asked = visit.query("row") or "0"
    wanted = int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 6 else 0
    part = partial(_numbers, row=wanted)
    grid = read_grid(visit.ctx, visit.caller, visit.path("job_id"), part=part)
    row, shown, all_rows = _first_row(grid.spec, wanted), _rows_shown(grid.spec), _rows(grid.spec)
    return render(
        visit,
        "grid_sheet.html",
        grid=grid,
        sheet=_part(grid, row, shown),
        not_drawn=NOT_DRAWN,
        earlier=str(row - shown) if row else None,
        later=str(row + shown) if row + shown < all_rows else None,
    )


def _numbers(spec: GridSpec, *, row: int) -> range:
    """Return the cells of the part of the sheet that has this row."""
    width, first = _width(spec), _first_row(spec, row) * _width(spec)
    last = min(first + min(_rows_shown(spec) * width, MOST_CELLS), _rows(spec) * width)
    return range(first, last)


def _rows_shown(spec: GridSpec) -> int:
    return max(1, MOST_CELLS // _width(spec))


def _first_row(spec: GridSpec, row: int) -> int:
    shown = _rows_shown(spec)
    return min(row, _rows(spec) - 1) // shown * shown


def _width(spec: GridSpec) -> int:
    """Return the number of cells in a row."""
    return spec.num_images_per_prompt * (len(spec.axes[-1].values) if len(spec.axes) > 1 else 1)


def _rows(spec: GridSpec) -> int:
    return cell_count(spec) * spec.num_images_per_prompt // _width(spec)


def _part(grid: DrawnGrid, row: int, rows_shown: int) -> GridSheet:
    spec, width = grid.spec, _width(grid.spec)
    *of_rows, of_columns = spec.axes if len(spec.axes) > 1 else (spec.axes[0], None)
    by_number = {cell.number: cell for cell in grid.cells}
    shown = min(width, MOST_CELLS)
    repeats = spec.num_images_per_prompt
    columns = []
    for column in range(shown):
        value, repeat = divmod(column, repeats)
        named = [] if of_columns is None else [f"{of_columns.title}: {of_columns.label_of(value)}"]
        columns.append(", ".join([*named, *([f"picture {repeat + 1}"] if repeats > 1 else [])]) or "picture")
    places = list(product(*(range(len(axis.values)) for axis in of_rows)))[row : row + rows_shown]
    return GridSheet(
        titles=", ".join(axis.title for axis in of_rows),
        columns=columns,
        rows=[
            (
                [axis.label_of(place) for axis, place in zip(of_rows, of_row, strict=True)],
                [by_number.get((row + number) * width + column) for column in range(shown)],
            )
            for number, of_row in enumerate(places)
        ],
        row=row,
        rows_in_all=_rows(spec),
        columns_in_all=width,
    )


_GRID = "/projects/{project_id}/grids/{job_id}"
ROUTES = (
    page(_GRID, show_grid),
    action(f"{_GRID}/retry", draw_again),
    page(f"{_GRID}/cells.csv", send_table),
    page(f"{_GRID}/cells.json", send_json),
)
