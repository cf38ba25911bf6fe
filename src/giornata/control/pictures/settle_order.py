"""Tell of an order's pictures, at most once a second, and end the order when all of them have ended.

Results say nothing to the order's row in jobs: a thousand nodes may work on one order. What has happened is counted
here, and a loop finds what a server left that died in between.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from giornata.control.budgets.budgets import pause_job, used_up
from giornata.control.context import Context
from giornata.control.ports.node_queries.picture_store import PictureOrderRow
from giornata.control.ports.node_queries.work_rows import JobRow
from giornata.control.ports.store import Transaction
from giornata.domain.generation.picture import OPEN, PictureState
from giornata.domain.jobs.job import TERMINAL, JobEvent, JobState
from giornata.protocol.events import EventType

TOLD_EVERY_MS = 1000
AT_MOST = 200

Counts = Mapping[PictureState, int]


def settle_soon(ctx: Context, order_ids: Collection[str]) -> None:
    """Settle those of the orders that this process has not settled within the last second. The loop does the rest."""
    now_ms = ctx.clock.now_ms()
    for order_id in sorted(order_ids):
        if ctx.memory.may_settle(order_id, at_ms=now_ms, every_ms=TOLD_EVERY_MS):
            settle_order(ctx, order_id)


def settle_orders(ctx: Context) -> int:
    """Settle orders whose finished pictures were not counted yet; return how many. A loop calls it again and
    again."""
    with ctx.store.only_here("orders") as ours:
        if not ours:
            return 0
        with ctx.store.read() as tx:
            untold = tx.picture_orders.untold(told_before_ms=ctx.clock.now_ms() - TOLD_EVERY_MS, limit=AT_MOST)
        for order_id in untold:
            settle_order(ctx, order_id)
        return len(untold)


def settle_order(ctx: Context, order_id: str) -> None:
    """Tell what has ended since the last time, and end or pause the order if it is time to."""
    now_ms = ctx.clock.now_ms()
    with ctx.store.begin() as tx:
        job = tx.jobs.lock(order_id)
        order = tx.picture_orders.order(order_id, lock=True)
        if job is None or order is None or order.told == order.ended:
            return
        tx.picture_orders.note_told(order_id, told=order.ended, at_ms=now_ms)
        counts = tx.picture_orders.counts(order_id)
        if job.state not in TERMINAL:
            _tell(tx, job, order, counts, at_ms=now_ms)
            if any(counts.get(state) for state in OPEN):
                _go_on(tx, ctx, job, at_ms=now_ms)
            else:
                _end(tx, ctx, job, counts, at_ms=now_ms)
    ctx.ended_pictures.add(_new(job, order, counts))


def _new(job: JobRow, order: PictureOrderRow, counts: Counts) -> Counts:
    """Return the pictures that have ended since the order was told of, by state. `job.step` is how many had
    succeeded then."""
    succeeded = counts.get(PictureState.SUCCEEDED, 0) - job.step
    return {PictureState.SUCCEEDED: succeeded, PictureState.FAILED: order.ended - order.told - succeeded}


def _tell(tx: Transaction, job: JobRow, order: PictureOrderRow, counts: Counts, *, at_ms: int) -> None:
    succeeded, failed = counts.get(PictureState.SUCCEEDED, 0), counts.get(PictureState.FAILED, 0)
    tx.jobs.update(job.id, step=succeeded)
    data = {"pictures": order.pictures, "succeeded": succeeded, "failed": failed, "place": order.ended}
    tx.events.add(job.id, job.project_id, EventType.PICTURES_READY, None, data, at_ms)


def _go_on(tx: Transaction, ctx: Context, job: JobRow, *, at_ms: int) -> None:
    if job.state is JobState.PAUSED:
        return
    stop = used_up(tx, ctx, job, at_ms=at_ms)
    if stop is not None:
        pause_job(tx, job, stop, at_ms=at_ms)
    elif job.state is JobState.QUEUED:
        tx.jobs.change(job, JobEvent.CLAIM, started_at_ms=job.started_at_ms or at_ms)


def _end(tx: Transaction, ctx: Context, job: JobRow, counts: Counts, *, at_ms: int) -> None:
    """End the order: it succeeds if a picture of it was drawn, and its result has the counts."""
    if job.state is JobState.PAUSED:
        job = replace(job, state=tx.jobs.change(job, JobEvent.RESUME, paused_by=None))
    tx.picture_orders.close_order(job.id)
    succeeded, failed = counts.get(PictureState.SUCCEEDED, 0), counts.get(PictureState.FAILED, 0)
    result = {"succeeded": succeeded, "failed": failed, "blocked": tx.picture_orders.blocked(job.id)}
    ended = {"ended_at_ms": at_ms, "phase": "", "result": result}
    if succeeded:
        state = tx.jobs.change(job, JobEvent.SUCCEED, error=None, **ended)
        tx.events.add(job.id, job.project_id, EventType.JOB_SUCCEEDED, None, {"step": succeeded}, at_ms)
    else:
        error = tx.picture_orders.first_error(job.id) or "no picture could be drawn"
        state = tx.jobs.change(job, JobEvent.FAIL, error=error, **ended)
        tx.events.add(job.id, job.project_id, EventType.JOB_FAILED, None, {"error": error, "faults": []}, at_ms)
    ctx.durations.ended(job, state, at_ms=at_ms)
