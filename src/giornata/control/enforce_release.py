"""An attempt that was told to give its job back has a grace to do so; after that the server ends it."""

from collections.abc import Mapping, Sequence

from giornata.control.context import Context
from giornata.control.end_attempt import end_attempt
from giornata.control.fence import locked
from giornata.control.ports.store import Transaction
from giornata.control.ports.work_rows import AttemptRow, JobRow
from giornata.control.release import after_an_order
from giornata.domain.errors import LeaseLost
from giornata.domain.reasons import Reason
from giornata.protocol.work import Order


def note_told(tx: Transaction, attempts: Sequence[AttemptRow], *, at_ms: int) -> None:
    """The replies to these heartbeats tell of an order: for those that never heard of it the grace begins now.

    Not when it was given: a node that could not be reached meanwhile has had no time to obey.
    """
    for attempt in attempts:
        if attempt.order != Order.CONTINUE and attempt.order_reason is not None and attempt.ordered_at_ms is None:
            tx.attempts.update_live(attempt.id, ordered_at_ms=at_ms)


def enforce_releases(ctx: Context, attempts: Sequence[AttemptRow]) -> Mapping[str, LeaseLost]:
    """Those of the attempts that did not obey in time are ended, each for the order's reason; by id.

    The job goes where it would have gone had the node obeyed; of one that was too slow that is the queue, with a
    ban of this machine. In transactions of their own: what the end of an attempt says about machines locks their
    rows, and nobody may hold those of one attempt and wait for those of another.
    """
    late = [attempt.id for attempt in attempts if _is_late(ctx, attempt)]
    ended = {attempt_id: _enforce(ctx, attempt_id) for attempt_id in late}
    return {attempt_id: lost for attempt_id, lost in ended.items() if lost is not None}


def end_disobedient(
    tx: Transaction, ctx: Context, job: JobRow, attempt: AttemptRow, reason: Reason, *, at_ms: int
) -> LeaseLost:
    """End it for the order's reason, and settle its job. The job must be locked, as it is now."""
    message = f"it was told to give the job back ({reason}), and had not done so {ctx.policy.stop_grace_s:g} s later"
    # Nothing that it says from here on is taken for obedience: a late report is refused like all else.
    tx.attempts.update_live(attempt.id, order_reason=None)
    end_attempt(tx, job, attempt, reason=reason, at_ms=at_ms, alive=True, message=message)
    state = after_an_order(tx, ctx, job, attempt, reason, at_ms=at_ms)
    return LeaseLost(f"attempt {attempt.id} has ended ({reason}); the job is {state}: drop it")


def _is_late(ctx: Context, attempt: AttemptRow) -> bool:
    # One that may have to wait for money is dealt with where the money is counted.
    if attempt.order_reason in {None, Reason.OVER_BUDGET} or attempt.ordered_at_ms is None:
        return False
    return ctx.clock.now_ms() - attempt.ordered_at_ms >= ctx.policy.stop_grace_s * 1000


def _enforce(ctx: Context, attempt_id: str) -> LeaseLost | None:
    with ctx.store.begin() as tx:
        job, attempt = locked(tx, attempt_id)
        if attempt.ended_at_ms is not None or attempt.order_reason is None or not _is_late(ctx, attempt):
            return None
        reason = Reason(attempt.order_reason)
        return end_disobedient(tx, ctx, job, attempt, reason, at_ms=ctx.clock.now_ms())
