"""Stop attempts at their heartbeats: a budget is used up, or a node does not obey a release.

A heartbeat warns once when a budget is nearly used up. An attempt that was told to give its job back has a grace to
do so; after that the server ends it.
"""

from collections.abc import Mapping, Sequence

from giornata.control.attempts.ending.end_attempt import end_attempt
from giornata.control.attempts.ending.reported_ends import after_an_order
from giornata.control.budgets.budgets import budgets_each, limits_of, told
from giornata.control.context import Context
from giornata.control.ports.node_queries.work_rows import AttemptRow, JobRow
from giornata.control.ports.store import Transaction
from giornata.control.storage.fence import locked
from giornata.domain.billing.budget import Budget, Payer, first_used_up, month_start_ms
from giornata.domain.errors import LeaseLost
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.events import EventType
from giornata.protocol.node.work import Order

Held = tuple[JobRow, AttemptRow]


def enforce_budgets(
    tx: Transaction, ctx: Context, held: Sequence[Held], *, at_ms: int
) -> Mapping[str, Order | LeaseLost]:
    """Return new orders by attempt, for those whose order changes; LeaseLost where an attempt was ended.

    The jobs are locked, their attempts live and billed up to now. An attempt whose money is used up is told to
    release its job, which gives it time for a checkpoint; one that goes on for `policy.stop_grace_s` all the same is
    ended. An order is taken back when the budget was raised meanwhile. Jobs without any budget cost nothing.
    """
    limited = [(job, attempt) for job, attempt in held if _has_budget(job)]
    lifted = [(job, attempt) for job, attempt in held if _ordered(attempt) and not _has_budget(job)]
    if not limited and not lifted:
        return {}
    budgets = budgets_each(tx, ctx, [job for job, _ in limited], at_ms=at_ms)
    _warn(tx, limited, budgets, at_ms=at_ms)
    found = {
        attempt.id: _order(tx, ctx, job, attempt, first_used_up(budgets.get(job.id, ())), at_ms=at_ms)
        for job, attempt in [*limited, *lifted]
    }
    return {attempt_id: order for attempt_id, order in found.items() if order is not None}


def _has_budget(job: JobRow) -> bool:
    own = (job.budget_micro_usd, job.sweep_budget_micro_usd)
    return own != (None, None) or bool(limits_of(job))


def _ordered(attempt: AttemptRow) -> bool:
    return attempt.order_reason == Reason.OVER_BUDGET


def _order(
    tx: Transaction, ctx: Context, job: JobRow, attempt: AttemptRow, stop: Budget | None, *, at_ms: int
) -> Order | LeaseLost | None:
    if stop is None:
        return _take_back(tx, attempt) if _ordered(attempt) else None
    if attempt.order_reason is None:
        # One that is told to drain does all that is asked here, and leaves.
        order = Order.RELEASE if attempt.order == Order.CONTINUE else Order(attempt.order)
        tx.attempts.update_live(attempt.id, order=order, order_reason=Reason.OVER_BUDGET, ordered_at_ms=at_ms)
        return order
    since_ms = attempt.ordered_at_ms if attempt.ordered_at_ms is not None else at_ms
    if _ordered(attempt) and at_ms - since_ms >= ctx.policy.stop_grace_s * 1000:
        return _end(tx, ctx, job, attempt, at_ms=at_ms)
    return None


def _take_back(tx: Transaction, attempt: AttemptRow) -> Order:
    order = Order.CONTINUE if attempt.order == Order.RELEASE else Order(attempt.order)
    tx.attempts.update_live(attempt.id, order=order, order_reason=None, ordered_at_ms=None)
    return order


def _end(tx: Transaction, ctx: Context, job: JobRow, attempt: AttemptRow, *, at_ms: int) -> LeaseLost:
    now = tx.jobs.lock(job.id) or job  # the beat may have brought it back from a lapse
    return end_disobedient(tx, ctx, now, attempt, Reason.OVER_BUDGET, at_ms=at_ms)


def _warn(tx: Transaction, held: Sequence[Held], budgets: Mapping[str, tuple[Budget, ...]], *, at_ms: int) -> None:
    asked: set[tuple[str, Payer]] = set()
    for job, attempt in held:
        for budget in budgets[job.id]:
            if not budget.nearly or budget.payer is Payer.SWEEP:
                continue  # of a sweep's budget its own loop warns, which may hold the sweep
            if budget.payer is Payer.JOB:
                first = job.budget_warned_at_ms is None
                if first:
                    tx.jobs.update(job.id, budget_warned_at_ms=at_ms)
            else:
                whose = (job.project_id, budget.payer)
                first = whose not in asked and _first_warning(tx, *whose, at_ms=at_ms)
                asked.add(whose)
            if first:
                event = EventType.BUDGET_WARNING
                tx.events.add(job.id, job.project_id, event, attempt.number, told(budget), at_ms)


def _first_warning(tx: Transaction, project_id: str, payer: Payer, *, at_ms: int) -> bool:
    if payer is Payer.MONTH:
        return tx.pausing.warned_of_month(project_id, month_ms=month_start_ms(at_ms), at_ms=at_ms)
    return tx.pausing.warned(project_id, at_ms=at_ms)


def note_told(tx: Transaction, attempts: Sequence[AttemptRow], *, at_ms: int) -> None:
    """Begin the grace of attempts that never heard of their order: the replies to these heartbeats tell them.

    The grace does not begin with the order itself: a node that could not be reached has had no time to obey.
    """
    for attempt in attempts:
        if attempt.order != Order.CONTINUE and attempt.order_reason is not None and attempt.ordered_at_ms is None:
            tx.attempts.update_live(attempt.id, ordered_at_ms=at_ms)


def enforce_releases(ctx: Context, attempts: Sequence[AttemptRow]) -> Mapping[str, LeaseLost]:
    """End those of the attempts that did not obey in time, each for the order's reason; return LeaseLost by id.

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
    """End the attempt for the order's reason, and settle its job. The job must be locked, as it is now."""
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
