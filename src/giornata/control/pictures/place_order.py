"""Place orders: write the pictures of a job that is an order, in the transaction that submits the job."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType

from giornata.control.pictures.await_annotations import kept_of
from giornata.control.ports.node_queries.picture_store import PictureOrderRow, PictureRow
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.gallery_store import SearchTerms
from giornata.control.ports.user_queries.records import JobRecord
from giornata.domain.generation.picture import MOST_PICTURES, ORDER_KINDS, PictureState
from giornata.domain.generation.search_terms import RETRIED, name_term, terms_of_order
from giornata.domain.jobs.routing import first_picture_turn
from giornata.protocol.generation.awaited_annotations import CONTROLNETS, QueueKeys, model_annotations, queue_keys
from giornata.protocol.generation.checks.named_models import named_models
from giornata.protocol.generation.drawn_grid import RETRIED_GRID
from giornata.protocol.generation.expand import PlannedPicture, planned_pictures
from giornata.protocol.generation.preprocess import PREPROCESS_KIND


def place_orders(tx: Transaction, jobs: Sequence[JobRecord]) -> None:
    """Write the pictures of those jobs that are orders, each at its turn. The jobs are there, their project is held.

    An order's pictures follow one another by their work, so that of two projects that wait each gets as many
    pixel-steps as the other.
    """
    found = [_place(tx, job) for job in jobs if job.kind in ORDER_KINDS]
    tx.picture_gallery.add_terms([each for each in found if each is not None])


def _place(tx: Transaction, job: JobRecord) -> SearchTerms | None:
    """Write one order; return what it is found by. None for annotations, which no gallery shows."""
    turns = tx.picture_orders.turns(job.project_id, priority=job.priority)
    planned = list(planned_pictures(job.kind, job.spec))
    keys = _keys_of_annotated(tx, job, planned)
    rows = list(_rows(job, planned, first_picture_turn(turns), keys=keys))
    ends_turn = rows[-1].turn + rows[-1].pixel_steps
    tx.picture_orders.add_order(_order_of(job, pictures=len(rows), ends_turn=ends_turn))
    tx.picture_orders.add_pictures(rows)
    return None if job.kind == PREPROCESS_KIND else _terms(job, rows)


def _keys_of_annotated(tx: Transaction, job: JobRecord, pictures: Sequence[PlannedPicture]) -> dict[int, QueueKeys]:
    """Return the keys of the pictures that need annotations by models, by number."""
    shared = bool(job.spec.get(CONTROLNETS))
    needed = {
        each.number: found
        for each in pictures
        if (shared or CONTROLNETS in each.differs) and (found := model_annotations(job.kind, job.spec, each.differs))
    }
    kept = kept_of(tx, job.project_id, chain.from_iterable(needed.values())) if needed else ()
    return {
        each.number: queue_keys(
            job.project_id, needed[each.number], kept=kept, drawing=QueueKeys(each.batch_key, each.base_key)
        )
        for each in pictures
        if each.number in needed
    }


def place_ended_order(tx: Transaction, job: JobRecord) -> None:
    """Write the pictures of an order that ended elsewhere, as canceled ones. It takes no turn in the queue.

    Raises InvalidInput for a prompt that cannot be drawn.
    """
    rows = list(_rows(job, planned_pictures(job.kind, job.spec), 0, state=PictureState.CANCELED))
    tx.picture_orders.add_order(_order_of(job, pictures=len(rows), ends_turn=0))
    tx.picture_orders.add_pictures(rows)
    tx.picture_orders.close_order(job.id)
    if job.kind != PREPROCESS_KIND:
        tx.picture_gallery.add_terms([_terms(job, rows)])


def _order_of(job: JobRecord, *, pictures: int, ends_turn: int) -> PictureOrderRow:
    return PictureOrderRow(
        order_id=job.id,
        project_id=job.project_id,
        priority=job.priority,
        pictures=pictures,
        ended=0,
        told=0,
        told_at_ms=job.created_at_ms,
        ends_turn=ends_turn,
    )


def _terms(job: JobRecord, rows: Sequence[PictureRow]) -> SearchTerms:
    named = list(named_models(job.spec))
    terms = terms_of_order(
        (str(each.differs.get("prompt") or "") for each in rows),
        models=[str(each.use["name"]) for each in named if each.role == "base"],
        loras=[str(each.use["name"]) for each in named if each.role == "lora"],
    )
    if grid := job.labels.get(RETRIED_GRID):
        terms = [name_term(RETRIED, grid), *terms]
    return SearchTerms(order_id=job.id, project_id=job.project_id, ordered_at_ms=job.created_at_ms, terms=terms)


def _rows(
    job: JobRecord,
    pictures: Iterable[PlannedPicture],
    turn: int,
    *,
    keys: Mapping[int, QueueKeys] = MappingProxyType({}),
    state: PictureState = PictureState.QUEUED,
) -> Iterator[PictureRow]:
    """Yield the rows of an order's pictures from this turn on. `keys` are those of pictures that need annotations by
    models, by number."""
    for planned in pictures:
        own = keys.get(planned.number)
        yield PictureRow(
            order_id=job.id,
            number=planned.number,
            project_id=job.project_id,
            state=state,
            batch_key=planned.batch_key if own is None else own.batch_key,
            base_key=planned.base_key if own is None else own.base_key,
            turn=turn,
            priority=job.priority,
            seed=planned.seed,
            differs=dict(planned.differs),
            pixel_steps=planned.pixel_steps,
            together=MOST_PICTURES,
            min_vram_bytes=job.min_vram_bytes,
        )
        turn += planned.pixel_steps
