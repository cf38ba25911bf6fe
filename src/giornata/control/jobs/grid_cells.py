"""Read the cells of a grid for its owner, and order cells again that failed."""

from collections.abc import Callable, Collection, Iterable, Iterator

from giornata.control.access.permissions import require_any
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.jobs.reading.job_reply import job_reply
from giornata.control.jobs.reading.order_pictures import picture_reply
from giornata.control.jobs.reading.read_jobs import own_job
from giornata.control.jobs.submission.order_models import bring_order_models
from giornata.control.jobs.submission.submit import JobRequest, submit_each
from giornata.control.ports.node_queries.picture_store import PictureRow
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.gallery_store import GalleryWanted
from giornata.control.ports.user_queries.records import JobInShort, JobRecord
from giornata.domain.errors import Fault, GiornataError, InvalidInput, NotFound
from giornata.domain.generation.search_terms import RETRIED, name_term
from giornata.domain.jobs.job import JobState
from giornata.protocol.generation.drawn_grid import (
    DrawnGrid,
    GridRetry,
    PicturePlace,
    drawn_cells,
    place_of,
    retry_fields,
    retry_key,
    retry_of,
)
from giornata.protocol.generation.grid import GRID_KIND, GridSpec, cell_count
from giornata.protocol.jobs import Job, SubmitJob
from giornata.protocol.project.admin import Scope

MOST_RETRIES = 50
"""Orders that draw cells of one grid again."""
ROWS = 500
"""Pictures that one statement reads."""


def read_grid(
    ctx: Context, caller: Caller, job_id: str, *, part: Callable[[GridSpec], range] | None = None
) -> DrawnGrid:
    """Return a grid with all its cells, or with those whose numbers `part` returns. Raises Forbidden, NotFound.

    A part of at most 500 cells costs four statements.
    """
    require_any(caller, Scope.JOBS_READ, Scope.GENERATE)
    with ctx.store.read() as tx:
        record = own_job(tx, caller, job_id)
        if record.kind != GRID_KIND:
            raise NotFound(f"{job_id} is not a grid")
        spec = GridSpec.model_validate(record.spec)
        numbers = range(cell_count(spec) * spec.num_images_per_prompt) if part is None else part(spec)
        orders, retries = _retries(tx, caller, job_id)
        places = place_of(job_id, retries, numbers)
        rows = [*_own_rows(tx, caller, job_id, numbers), *_retried_rows(tx, caller, job_id, places.values())]
    orders[job_id] = _in_short(record)
    pictures = {(row.order_id, row.number): picture_reply(ctx, orders[row.order_id], row) for row in rows}
    there = {number: place for number, place in places.items() if (job_id, number) in pictures}
    cells = drawn_cells(spec, there, pictures, job_id)
    return DrawnGrid(job=job_reply(record, (), names=None), retries=retries, spec=spec, cells=cells)


def draw_cells_again(ctx: Context, caller: Caller, job_id: str, numbers: Collection[int] = ()) -> Job:
    """Order cells of a grid again that failed or were canceled: these, or all where `numbers` is empty.

    A cell has the seed and the settings that it had. Of very many cells the first ones are ordered, as many as a
    label can name. Raises Forbidden, NotFound; InvalidInput when one of the cells, or none of all, has failed.
    """
    grid = read_grid(ctx, caller, job_id)
    failed = {cell.number for cell in grid.not_drawn}
    wanted = sorted(set(numbers) or failed)
    faults = [Fault(where=f"cell {each}", message="has not failed") for each in wanted if each not in failed]
    if not wanted:
        faults.append(Fault(where="cells", message="none has failed"))
    if len(grid.retries) >= MOST_RETRIES:
        hint = "order the cells that are left as a grid of their own"
        faults.append(Fault(where="grid", message=f"cells were drawn again {MOST_RETRIES} times", hint=hint))
    if faults:
        raise InvalidInput(faults)
    request = SubmitJob(**retry_fields(grid, wanted))
    parsed = bring_order_models(ctx, caller, request)
    key = retry_key(grid, wanted)
    asked = JobRequest(caller=caller, request=request, idempotency_key=key, parsed_spec=parsed)
    (answer,) = submit_each(ctx, [asked])
    if isinstance(answer, GiornataError):
        raise answer
    return answer[0]


def _retries(tx: Transaction, caller: Caller, job_id: str) -> tuple[dict[str, JobInShort], tuple[GridRetry, ...]]:
    """Return the latest orders that draw cells of the grid again, in the order of submission."""
    wanted = GalleryWanted(project_id=caller.project_id, terms=[name_term(RETRIED, job_id)])
    spans = tx.picture_gallery.orders(wanted, limit=MOST_RETRIES)
    orders = {span.order.id: span.order for span in reversed(spans) if span.fits}
    return orders, tuple(retry_of(each.id, JobState(each.state), each.retried_cells) for each in orders.values())


def _own_rows(tx: Transaction, caller: Caller, job_id: str, numbers: range) -> Iterator[PictureRow]:
    for first in range(numbers.start, numbers.stop, ROWS):
        limit = min(ROWS, numbers.stop - first)
        yield from tx.picture_orders.page(job_id, project_id=caller.project_id, after=first - 1, limit=limit)


def _retried_rows(
    tx: Transaction, caller: Caller, job_id: str, places: Iterable[PicturePlace]
) -> Iterator[PictureRow]:
    wanted = [(order, number, number) for order, number in places if order != job_id]
    yield from tx.picture_gallery.pictures(wanted, project_id=caller.project_id)


def _in_short(job: JobRecord) -> JobInShort:
    image_format = job.spec.get("image_format")
    return JobInShort(id=job.id, name=job.name, state=job.state, image_format=image_format)
