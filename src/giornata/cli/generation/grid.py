"""`giornata grid`: a picture of each combination of some values, as a labeled sheet and as tables."""

from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from giornata.cli.generation.grid_options import FILE, GridOptions, check_grid
from giornata.cli.generation.grid_sheet import write_sheets
from giornata.cli.jobs.download import folder_faults
from giornata.cli.jobs.estimate import say_estimate
from giornata.cli.jobs.inputs.find_job import find_job
from giornata.cli.jobs.options.option_groups import with_option_groups
from giornata.cli.jobs.options.order_options import (
    CheckedOrder,
    DrawnOptions,
    OrderOptions,
    OrderTerms,
    ResultOptions,
    in_options,
)
from giornata.cli.jobs.order_progress import follow_order
from giornata.cli.options import JsonFlag, settings_of
from giornata.cli.settings import Settings
from giornata.cli.settings.connection import connect
from giornata.cli.settings.hints import giornata
from giornata.cli.ui.output import EXIT_FAILED, EXIT_PAUSED, Output, reporting
from giornata.cli.ui.text import count
from giornata.client import Client
from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.jobs.job import JobState
from giornata.protocol.generation.drawn_grid import (
    RETRIED_CELLS,
    RETRIED_GRID,
    DrawnCell,
    DrawnGrid,
    cell_as_json,
    cell_table,
    cells_as_json,
    count_cells,
    drawn_cells,
    place_of,
    retry_fields,
    retry_key,
    retry_of,
)
from giornata.protocol.generation.grid import GRID_KIND, GridSpec
from giornata.protocol.generation.specs import GENERATE_KIND
from giornata.protocol.jobs import Job

TABLE, CELLS = "grid.csv", "grid.json"


def register(app: typer.Typer) -> None:
    """Add the command `grid` to `app`."""
    app.command()(with_option_groups(grid))


def grid(
    context: typer.Context,
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="Prompt with slots such as {who}.", show_default=False)
    ] = None,
    axes: Annotated[
        list[str] | None,
        typer.Option(
            "--axis",
            metavar="NAME=VALUE,VALUE",
            help="A slot of the prompt, or a field of the spec, with its values. The values are divided by commas, a "
            "list in JSON, or @FILE with a value on each line. May be repeated.",
            show_default=False,
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            FILE,
            "-f",
            metavar="FILE",
            help="The grid's spec as TOML, JSON or YAML. Options go before it.",
            show_default=False,
        ),
    ] = None,
    *,
    drawn: DrawnOptions,
    terms: OrderTerms,
    results: ResultOptions,
    show: Annotated[
        str | None,
        typer.Option(
            metavar="JOB", help="Write the sheet of this grid, which was ordered before.", show_default=False
        ),
    ] = None,
    retry: Annotated[
        str | None,
        typer.Option(metavar="JOB", help="Order the failed cells of this grid again.", show_default=False),
    ] = None,
    cells: Annotated[
        list[int] | None,
        typer.Option(
            "--cell",
            metavar="NUMBER",
            min=0,
            help="With --retry: only this cell, by its number in grid.csv. May be repeated.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Draw a picture of each combination of values, as one sheet.

    With -o DIR the command writes the pictures, a labeled sheet (grid.png), and the cells as grid.csv and grid.json.
    All cells have the same seed. After Ctrl-C the order goes on: --show JOB comes back to it.
    """
    with reporting(as_json) as out:
        pictures = OrderOptions(
            prompts=() if prompt is None else (prompt,),
            **asdict(drawn),
        )
        asked = GridOptions(pictures=pictures, axes=axes or (), file=file)
        output, settings = results.output, settings_of(context)
        faults = folder_faults(output)
        if show is not None or retry is not None:
            faults += _misplaced(asked, show=show, retry=retry)
            faults += _cells_without_retry(cells) if retry is None else []
            if faults:
                raise InvalidInput(faults)
            again = None if retry is None else tuple(cells or ())
            status = _of_earlier(settings, str(show or retry), out, output, again=again)
        else:
            faults += _cells_without_retry(cells)
            if output is not None and (results.estimated or not results.wait):
                hint = f"write the sheet later: {giornata('grid', '--show', 'JOB', '-o', 'DIR')}"
                message = f"cannot be combined with {'--estimate' if results.estimated else '--no-wait'}"
                faults.append(Fault(where="--output", message=message, hint=hint))
            order = check_grid(asked, terms, faults)
            status = _of_new(settings, order, out, results)
    if status:
        raise typer.Exit(status)


def _misplaced(asked: GridOptions, *, show: str | None, retry: str | None) -> list[Fault]:
    """Return a fault for each option of a new grid that is given with the option for an earlier one."""
    option = "--show" if show is not None else "--retry"
    pictures = asked.pictures
    given = {
        "--retry": show is not None and retry is not None,
        "PROMPT": bool(pictures.prompts),
        "--axis": bool(asked.axes),
        FILE: asked.file is not None,
        "--model": pictures.model is not None,
        "--lora": bool(pictures.loras),
        "--count": pictures.count is not None,
        "--size": pictures.size is not None,
        "--steps": pictures.steps is not None,
        "--guidance": pictures.guidance is not None,
        "--scheduler": pictures.scheduler is not None,
        "--seed": pictures.seed is not None,
        "--negative": pictures.negative is not None,
        "--set": bool(pictures.assignments),
    }
    hint = "the grid that was ordered says what is drawn; leave it out"
    found = [where for where, there in given.items() if there]
    return [Fault(where=where, message=f"cannot be combined with {option}", hint=hint) for where in found]


def _cells_without_retry(cells: list[int] | None) -> list[Fault]:
    hint = "say which grid, with --retry JOB"
    return [Fault(where="--cell", message="applies only with --retry", hint=hint)] if cells else []


def _of_new(settings: Settings, order: CheckedOrder, out: Output, results: ResultOptions) -> int:
    output = results.output
    with connect(settings) as client:
        with in_options():
            if results.estimated:
                say_estimate(client.estimate(order.spec, kind=GRID_KIND, priority=order.terms["priority"]), out)
                return 0
            job = client.submit(order.spec, kind=GRID_KIND, **order.terms)
        out.say(f"{job.id} is in the queue: {count(job.total_steps or 0, 'picture')}, seed {job.spec['seed']}")
        if results.wait:
            return _finish(client, follow_order(client, job, out, output=output)[0], job.id, out, output)
        out.hint(f"  sheet         {giornata('grid', '--show', job.id, '-o', 'grid')}")
        out.result(job)
        return 0


def _of_earlier(
    settings: Settings, word: str, out: Output, output: Path | None, *, again: tuple[int, ...] | None
) -> int:
    """Write an earlier grid; with `again`, order these cells first, or all that failed where it is empty."""
    with connect(settings) as client:
        job = client.get_job(find_job(client, word))
        found = read_grid(client, job)
        orders = [job.id, *(each.id for each in found.retries)]
        active = list(found.active)
        if again is not None:
            more = order_again(client, found, again)
            if more is None:
                out.say(f"every cell of {job.id} has its picture")
            else:
                out.say(f"{more.id} draws {count(more.total_steps or 0, 'cell')} again")
                orders.append(more.id)
                active.append(more.id)
        for each in dict.fromkeys(orders):
            if each in active:
                job, _ = follow_order(client, client.get_job(each), out, output=output)
            elif output is not None:
                client.download_pictures(each, output)
        return _finish(client, job, orders[0], out, output)


def _finish(client: Client, last: Job, grid_id: str, out: Output, output: Path | None) -> int:
    """Write the sheet and the tables, say what came of the cells, and return the exit status."""
    found = read_grid(client, client.get_job(grid_id))
    files = [] if output is None else _write(found, output)
    for file in files:
        out.say(str(file))
    said = ", ".join(f"{number} {word}" for word, number in count_cells(found.cells))
    out.say(f"{count(len(found.cells), 'cell')}: {said}")
    if found.not_drawn:
        into = () if output is None else ("-o", str(output))
        out.hint(f"  draw again    {giornata('grid', '--retry', grid_id, *into)}")
    elif output is None:
        out.hint(f"  sheet         {giornata('grid', '--show', grid_id, '-o', 'grid')}")
    cells = [cell_as_json(cell) for cell in found.cells]
    told = {"grid": grid_id, "retries": [each.id for each in found.retries], "cells": cells}
    out.result(told | {"files": [str(file) for file in files]})
    if last.state is JobState.PAUSED:
        return EXIT_PAUSED
    return EXIT_FAILED if found.not_drawn else 0


def _write(grid: DrawnGrid, directory: Path) -> list[Path]:
    """Write the sheets, the table and the JSON beside the pictures."""
    directory.mkdir(parents=True, exist_ok=True)

    def file_of(cell: DrawnCell) -> Path | None:
        there = None if cell.file is None else directory / cell.file
        return there if there is not None and there.is_file() else None

    table, cells = directory / TABLE, directory / CELLS
    table.write_text(cell_table(grid), encoding="utf-8")
    cells.write_text(cells_as_json(grid), encoding="utf-8")
    return [*write_sheets(grid, file_of, directory), table, cells]


def read_grid(client: Client, job: Job) -> DrawnGrid:
    """Return a grid with its cells as they are now. Raises InvalidInput for a job of another kind."""
    if job.kind != GRID_KIND:
        message = f"{job.id} is a job of kind {job.kind}, and no grid"
        raise InvalidInput([Fault(where="JOB", message=message, hint="give the job that giornata grid has made")])
    spec = GridSpec.model_validate(job.spec)
    pictures = {(job.id, each.number): each for each in client.pictures(job.id)}
    numbers = [number for _, number in pictures]
    found = sorted(client.jobs(kind=GENERATE_KIND, labels={RETRIED_GRID: job.id}), key=lambda each: each.created_at)
    retries = tuple(retry_of(each.id, each.state, each.labels.get(RETRIED_CELLS)) for each in found)
    for retry in retries:
        pictures |= {(retry.id, each.number): each for each in client.pictures(retry.id)}
    places = place_of(job.id, retries, numbers)
    return DrawnGrid(job=job, retries=retries, spec=spec, cells=drawn_cells(spec, places, pictures, job.id))


def order_again(client: Client, grid: DrawnGrid, cells: Collection[int] = ()) -> Job | None:
    """Order the cells once more that failed or were canceled: all, or those in `cells`. None when none has.

    A cell has the seed and the settings that it had. Raises InvalidInput for a cell that has not failed, and when no
    cell has failed while some are still being drawn. Two calls at the same time make one order.
    """
    failed = {cell.number for cell in grid.not_drawn}
    if others := sorted(set(cells) - failed):
        shown = ", ".join(map(str, others[:5]))
        raise InvalidInput(
            [Fault(where="--cell", message=f"{shown} has not failed", hint="grid.csv names the cells")]
        )
    wanted = sorted(cells or failed)
    if not wanted:
        if grid.active:
            message = f"{grid.active[0]} has not ended, and may still draw them"
            raise InvalidInput([Fault(where="--retry", message=message, hint="wait for its end, or cancel it")])
        return None
    fields = retry_fields(grid, wanted)
    return client.submit(fields.pop("spec"), idempotency_key=retry_key(grid, wanted), **fields)
