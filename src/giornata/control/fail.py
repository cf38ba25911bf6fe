"""A node says that its attempt cannot go on, and why."""

from giornata.control.context import Context
from giornata.control.judge_machines import everybodys, judge_failure
from giornata.control.ports.store import Transaction
from giornata.control.ports.work_rows import AttemptRow, JobRow
from giornata.control.reported_end import end_as_reported, end_by_report
from giornata.control.requeue import fail_job, fruitless_after, requeue, verdict
from giornata.control.shared_fault import settle_shared_fault, shared_fault
from giornata.domain.job import JobState
from giornata.domain.reasons import BAN, REPORTABLE_FAILURES, STRIKE, Reason
from giornata.domain.routing import memory_after_too_small
from giornata.protocol.events import EventType
from giornata.protocol.specs import CANARY_KIND
from giornata.protocol.work import AttemptEnded, FailAttempt


def fail(ctx: Context, attempt_id: str, report: FailAttempt) -> AttemptEnded:
    """End the attempt; by the reason's row in the tables ban and strike the machine; requeue the job, or fail it.

    A fault that ended several attempts on one engine may be nobody's: see `shared_fault`; and `end_as_reported`.
    """

    def settle(tx: Transaction, job: JobRow, attempt: AttemptRow, at_ms: int) -> JobState:
        fault = shared_fault(tx, job, attempt, report)
        end_by_report(tx, job, attempt, report, at_ms=at_ms, shared_fault=fault is not None)
        if fault is not None:
            # A crash among several is nobody's until it happens to one alone.
            if STRIKE[report.reason] and attempt.id == fault.speaker:
                judge_failure(tx, ctx, job, attempt, report.reason, at_ms=at_ms, job_failed=False)
            return settle_shared_fault(tx, ctx, job, attempt, report, fault, at_ms=at_ms)
        _judge(tx, job, attempt, report, at_ms=at_ms)
        state = _settle(tx, ctx, job, attempt, report, at_ms=at_ms)
        failed = state is JobState.FAILED
        judge_failure(tx, ctx, job, attempt, report.reason, at_ms=at_ms, job_failed=failed)
        return state

    return end_as_reported(ctx, attempt_id, report, settle, allowed=REPORTABLE_FAILURES)


def _judge(tx: Transaction, job: JobRow, attempt: AttemptRow, report: FailAttempt, *, at_ms: int) -> None:
    if BAN[report.reason]:
        tx.judgements.ban(job.id, attempt.machine_id, report.reason, at_ms=at_ms)
    if report.reason is Reason.NODE_TOO_SMALL:
        _learn_memory(tx, job, attempt, at_ms=at_ms)
    if STRIKE[report.reason]:
        tx.judgements.strike(attempt, report.reason, at_ms=at_ms)


def _learn_memory(tx: Transaction, job: JobRow, attempt: AttemptRow, *, at_ms: int) -> None:
    """The job needs more than this node has: no other of that size is tried."""
    node = tx.nodes.get(attempt.node_id)
    if node is None or node.vram_bytes is None:
        return
    needed = memory_after_too_small(node.vram_bytes)
    if needed <= job.min_vram_bytes:
        return
    tx.jobs.update(job.id, min_vram_bytes=needed)
    data = {"name": "needs-more-memory", "vram_bytes": node.vram_bytes, "min_vram_bytes": needed}
    tx.events.add(job.id, job.project_id, EventType.NOTICE, attempt.number, data, at_ms)


def _settle(
    tx: Transaction, ctx: Context, job: JobRow, attempt: AttemptRow, report: FailAttempt, *, at_ms: int
) -> JobState:
    # On a bad day of everybody's the job is not to blame that it comes to nothing.
    bad_day = everybodys(tx, ctx, job, attempt, report.reason, at_ms=at_ms)
    fruitless = job.fruitless if bad_day else fruitless_after(job, attempt)
    why = verdict(tx, ctx, job, attempt, reason=report.reason, fruitless=fruitless)
    if why is None and job.kind == CANARY_KIND:
        why = "it was for this machine only"
    if why is None:
        return requeue(tx, ctx, job, attempt, at_ms=at_ms, fruitless=fruitless)
    error = f"{report.message} ({report.reason}: {why})"
    return fail_job(tx, job, attempt, error=error, faults=report.faults, at_ms=at_ms)
