"""The cells of a grid that was ordered, read over HTTP. A cell that was ordered again has the later picture."""

from collections.abc import Collection

from giornata.client import Client
from giornata.domain.errors import Fault, InvalidInput
from giornata.protocol.generation.drawn_grid import (
    RETRIED_CELLS,
    RETRIED_GRID,
    DrawnGrid,
    drawn_cells,
    place_of,
    retry_fields,
    retry_key,
    retry_of,
)
from giornata.protocol.generation.grid import GRID_KIND, GridSpec
from giornata.protocol.generation.specs import GENERATE_KIND
from giornata.protocol.jobs import Job


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
