"""Take the ends that a node reports: the attempt failed, or the node gives the job back.

Each is fenced, counts once, and may be repeated.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from giornata.control.attempts.ending.end_attempt import end_attempt
from giornata.control.attempts.ending.end_picture_lease import fail_lease
from giornata.control.attempts.ending.judge_machines import judge_failure
from giornata.control.attempts.ending.requeue import requeue, settle_failure
from giornata.control.context import Context
from giornata.control.pictures.failed_pictures import give_back_all
from giornata.control.ports.node_queries.work_rows import AttemptRow, JobRow
from giornata.control.ports.store import Transaction
from giornata.control.storage.fence import locked, refuse_ended
from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.jobs.job import JobState
from giornata.domain.jobs.reasons import (
    AMBIGUOUS_WHEN_SHARED,
    BAN,
    REPORTABLE_FAILURES,
    REPORTABLE_RELEASES,
    STRIKE,
    Reason,
)
from giornata.domain.jobs.routing import memory_after_too_small
from giornata.protocol.events import EventType
from giornata.protocol.node.work import AttemptEnded, FailAttempt, ReleaseAttempt

Settle = Callable[[Transaction, JobRow, AttemptRow, int], JobState]
"""Ends the attempt and says what becomes of the job: the transaction, the job, the attempt as it was, and now (ms) →
the job's new state."""
_After = Callable[[Transaction, Context, JobRow, AttemptRow, int], JobState]


def end_as_reported(
    ctx: Context,
    attempt_id: str,
    report: FailAttempt | ReleaseAttempt,
    settle: Settle,
    *,
    allowed: Collection[Reason],
) -> AttemptEnded:
    """End the attempt for the report's reason and settle the job, in one transaction.

    A repeated report counts once and is answered alike. Raises LeaseLost when the attempt ended otherwise, and
    InvalidInput for a reason that is not `allowed`.
    """
    if report.reason not in allowed:
        hint = f"one of {', '.join(sorted(allowed))}"
        raise InvalidInput(
            [Fault(where="reason", message=f"a node cannot report the reason {report.reason} here", hint=hint)]
        )
    now_ms = ctx.clock.now_ms()
    with ctx.store.begin() as tx:
        job, attempt = locked(tx, attempt_id)
        if attempt.ended_at_ms is not None and attempt.reason in {report.reason, _ordered(attempt, report)}:
            return AttemptEnded(job_state=job.state)
        refuse_ended(job, attempt)
        return AttemptEnded(job_state=settle(tx, job, attempt, now_ms))


def _ordered(attempt: AttemptRow, report: FailAttempt | ReleaseAttempt) -> Reason | None:
    """Return the reason of the order that the report obeys; None when the attempt ends for another reason."""
    obeys = isinstance(report, ReleaseAttempt) and report.reason is Reason.RELEASED
    return Reason(attempt.order_reason) if obeys and attempt.order_reason is not None else None


def end_by_report(
    tx: Transaction,
    job: JobRow,
    attempt: AttemptRow,
    report: FailAttempt | ReleaseAttempt,
    *,
    at_ms: int,
    shared_fault: bool = False,
) -> None:
    """End the attempt with all that the report says of it; see `end_attempt`."""
    failure = report if isinstance(report, FailAttempt) else None
    end_attempt(
        tx,
        job,
        attempt,
        reason=report.reason,
        at_ms=at_ms,
        alive=True,
        message=report.message,
        step=report.step,
        exit_code=failure.exit_code if failure else None,
        log_tail=failure.log_tail if failure else "",
        shared_fault=shared_fault,
    )


def fail(ctx: Context, attempt_id: str, report: FailAttempt) -> AttemptEnded:
    """End the attempt; by the reason's row in the tables ban and strike the machine; requeue the job, or fail it.

    A fault that ended several attempts on one engine may have no known cause: see `shared_fault`; and
    `end_as_reported`.
    """

    def settle(tx: Transaction, job: JobRow, attempt: AttemptRow, at_ms: int) -> JobState:
        if attempt.pictures:
            end_by_report(tx, job, attempt, report, at_ms=at_ms)
            return fail_lease(tx, ctx, job, attempt, report.reason, message=report.message, at_ms=at_ms)
        fault = shared_fault(tx, job, attempt, report)
        end_by_report(tx, job, attempt, report, at_ms=at_ms, shared_fault=fault is not None)
        if fault is not None:
            # A crash among several jobs is not held against one until it happens to that job alone.
            if STRIKE[report.reason] and attempt.id == fault.speaker:
                judge_failure(tx, ctx, job, attempt, report.reason, at_ms=at_ms, job_failed=False)
            return settle_shared_fault(tx, ctx, job, attempt, report, fault, at_ms=at_ms)
        _judge(tx, job, attempt, report, at_ms=at_ms)
        state = settle_failure(
            tx, ctx, job, attempt, report.reason, message=report.message, faults=report.faults, at_ms=at_ms
        )
        failed = state is JobState.FAILED
        judge_failure(tx, ctx, job, attempt, report.reason, at_ms=at_ms, job_failed=failed)
        return state

    return end_as_reported(ctx, attempt_id, report, settle, allowed=REPORTABLE_FAILURES)


def _judge(tx: Transaction, job: JobRow, attempt: AttemptRow, report: FailAttempt, *, at_ms: int) -> None:
    if BAN[report.reason]:
        tx.bans.ban(job.id, attempt.machine_id, report.reason, at_ms=at_ms)
    if report.reason is Reason.NODE_TOO_SMALL:
        _learn_memory(tx, job, attempt, at_ms=at_ms)
    if STRIKE[report.reason]:
        tx.bans.strike(attempt, report.reason, at_ms=at_ms)


def _learn_memory(tx: Transaction, job: JobRow, attempt: AttemptRow, *, at_ms: int) -> None:
    """Raise the job's need of GPU memory above this node's: no other node of that size is tried."""
    node = tx.nodes.get(attempt.node_id)
    if node is None or node.vram_bytes is None:
        return
    needed = memory_after_too_small(node.vram_bytes)
    if needed <= job.min_vram_bytes:
        return
    tx.jobs.update(job.id, min_vram_bytes=needed)
    data = {"name": "needs-more-memory", "vram_bytes": node.vram_bytes, "min_vram_bytes": needed}
    tx.events.add(job.id, job.project_id, EventType.NOTICE, attempt.number, data, at_ms)


def release(ctx: Context, attempt_id: str, report: ReleaseAttempt) -> AttemptEnded:
    """End the attempt and queue the job again, at once and without blame; see `end_as_reported`.

    An attempt that was told to go ends as the order says: see `ordered_end`.
    """

    def settle(tx: Transaction, job: JobRow, attempt: AttemptRow, at_ms: int) -> JobState:
        if attempt.pictures:
            end_by_report(tx, job, attempt, report, at_ms=at_ms)
            give_back_all(tx, ctx, attempt, report.reason, message=report.message, at_ms=at_ms)
            return job.state
        if report.reason is Reason.RELEASED and attempt.order_reason is not None:
            return ordered_end(tx, ctx, job, attempt, report, at_ms=at_ms)
        end_by_report(tx, job, attempt, report, at_ms=at_ms)
        return requeue(tx, ctx, job, attempt, at_ms=at_ms)

    return end_as_reported(ctx, attempt_id, report, settle, allowed=REPORTABLE_RELEASES)


def ordered_end(
    tx: Transaction, ctx: Context, job: JobRow, attempt: AttemptRow, report: ReleaseAttempt, *, at_ms: int
) -> JobState:
    """End the attempt for the reason of the server's order; the job goes where that leads."""
    reason = Reason(attempt.order_reason or report.reason)
    end_by_report(tx, job, attempt, report.model_copy(update={"reason": reason}), at_ms=at_ms)
    return after_an_order(tx, ctx, job, attempt, reason, at_ms=at_ms)


def after_an_order(
    tx: Transaction, ctx: Context, job: JobRow, attempt: AttemptRow, reason: Reason, *, at_ms: int
) -> JobState:
    """Settle job and machine of an attempt that an order for this reason ended; return the job's new state."""
    return _AFTER[reason](tx, ctx, job, attempt, at_ms)


def _move(tx: Transaction, ctx: Context, job: JobRow, attempt: AttemptRow, at_ms: int) -> JobState:
    """Ban the machine that was too slow; another one goes on with the job, if there is one. See `settle_failure`."""
    if BAN[Reason.TOO_SLOW]:
        tx.bans.ban(job.id, attempt.machine_id, Reason.TOO_SLOW, at_ms=at_ms)
    if STRIKE[Reason.TOO_SLOW]:
        tx.bans.strike(attempt, Reason.TOO_SLOW, at_ms=at_ms)
    message = "the server took the job from a machine that was too slow"
    state = settle_failure(tx, ctx, job, attempt, Reason.TOO_SLOW, message=message, at_ms=at_ms)
    failed = state is JobState.FAILED
    judge_failure(tx, ctx, job, attempt, Reason.TOO_SLOW, at_ms=at_ms, job_failed=failed)
    return state


def _wait(tx: Transaction, ctx: Context, job: JobRow, attempt: AttemptRow, at_ms: int) -> JobState:
    """Pause the job whose money was used up, unless the budget has been raised since."""
    return requeue(tx, ctx, job, attempt, at_ms=at_ms)


_AFTER: Mapping[Reason, _After] = MappingProxyType({Reason.TOO_SLOW: _move, Reason.OVER_BUDGET: _wait})


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFault:
    """The attempts of one node that one fault ended, this one among them, by id."""

    attempts: Mapping[str, AttemptRow]

    @property
    def speaker(self) -> str:
        """The attempt on which the machine's one strike hangs: all that report it agree which."""
        return min(self.attempts)


def shared_fault(tx: Transaction, job: JobRow, attempt: AttemptRow, report: FailAttempt) -> SharedFault | None:
    """Return the fault that the attempt shares; None when it concerns this attempt only, tells whose fault it was,
    or the job ran alone.

    Attempts that the report names, but that are not on this node, do not count.
    """
    others = set(report.together) - {attempt.id}
    if not others or job.joint_key is None or not AMBIGUOUS_WHEN_SHARED[report.reason]:
        return None
    there = [each for each in tx.attempts.get_each(sorted(others)).values() if each.node_id == attempt.node_id]
    return SharedFault(attempts={each.id: each for each in [attempt, *there]}) if there else None


def settle_shared_fault(  # noqa: PLR0917
    tx: Transaction,
    ctx: Context,
    job: JobRow,
    attempt: AttemptRow,
    report: FailAttempt,
    fault: SharedFault,
    *,
    at_ms: int,
) -> JobState:
    """Requeue the job without a ban and without failure: it waits for a node of its own. The machine has one strike
    for all.
    """
    if STRIKE[report.reason] and attempt.id == fault.speaker:
        tx.bans.strike(attempt, report.reason, at_ms=at_ms)
    count = len(fault.attempts)
    why = f"one fault ({report.reason}) ended {count} jobs in one engine, and nobody can tell whose it was"
    return requeue(tx, ctx, job, attempt, at_ms=at_ms, alone_because=why)
