"""Place orders: write the pictures of a job that is an order, in the transaction that submits the job."""

from collections.abc import Iterator, Sequence

from giornata.control.ports.picture_store import PictureOrderRow, PictureRow
from giornata.control.ports.records import JobRecord
from giornata.control.ports.store import Transaction
from giornata.domain.picture import ORDER_KINDS, PictureState
from giornata.domain.routing import first_picture_turn
from giornata.protocol.generation.expand import planned_pictures
from giornata.protocol.pictures import MOST_PICTURES


def place_orders(tx: Transaction, jobs: Sequence[JobRecord]) -> None:
    """Write the pictures of those jobs that are orders, each at its turn. The jobs are there, their project is held.

    An order's pictures follow one another by their work, so that of two projects that wait each gets as many
    pixel-steps as the other.
    """
    for job in jobs:
        if job.kind in ORDER_KINDS:
            _place(tx, job)


def _place(tx: Transaction, job: JobRecord) -> None:
    turns = tx.picture_orders.turns(job.project_id, priority=job.priority)
    rows = list(_rows(job, first_picture_turn(turns)))
    order = PictureOrderRow(
        order_id=job.id,
        project_id=job.project_id,
        priority=job.priority,
        pictures=len(rows),
        ended=0,
        told=0,
        told_at_ms=job.created_at_ms,
        ends_turn=rows[-1].turn + rows[-1].pixel_steps,
    )
    tx.picture_orders.add_order(order)
    tx.picture_orders.add_pictures(rows)


def _rows(job: JobRecord, turn: int) -> Iterator[PictureRow]:
    for planned in planned_pictures(job.kind, job.spec):
        yield PictureRow(
            order_id=job.id,
            number=planned.number,
            project_id=job.project_id,
            state=PictureState.QUEUED,
            batch_key=planned.batch_key,
            base_key=planned.base_key,
            turn=turn,
            priority=job.priority,
            seed=planned.seed,
            differs=dict(planned.differs),
            pixel_steps=planned.pixel_steps,
            together=MOST_PICTURES,
            min_vram_bytes=job.min_vram_bytes,
        )
        turn += planned.pixel_steps
