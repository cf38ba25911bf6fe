"""Settle sweeps: their jobs begin as their budget allows, and a sweep ends when its last job has ended.

Nothing that a node asks for waits for this: a loop looks at the sweeps that have not ended.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from giornata.control.budgets.budgets import pause_job, resume_job, told
from giornata.control.context import Context
from giornata.control.ports.node_queries.work_rows import JobRow
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.sweep_store import OpenSweep, SweptRow
from giornata.domain.billing.budget import Budget, Payer
from giornata.domain.jobs.job import TERMINAL, JobEvent, JobState
from giornata.domain.jobs.sweep import SWEEP_KIND, SweptJob, plan_sweep, stands_still, sweep_end
from giornata.protocol.events import EventType

AT_MOST = 1000

Counts = Mapping[JobState, int]
_TYPES: Mapping[JobEvent, EventType] = {
    JobEvent.SUCCEED: EventType.JOB_SUCCEEDED,
    JobEvent.FAIL: EventType.JOB_FAILED,
    JobEvent.CANCEL: EventType.JOB_CANCELED,
    JobEvent.EXPIRE: EventType.JOB_EXPIRED,
}


def settle_sweeps(ctx: Context) -> int:
    """Settle the sweeps that have changed, and those with a budget; return how many changed. A loop calls it again
    and again.
    """
    with ctx.store.read() as tx:
        found = tx.sweeps.open_sweeps(limit=AT_MOST)
    changed = 0
    for each in found:
        if _is_settled(each):
            continue
        with ctx.store.begin() as tx:
            changed += settle_sweep(tx, ctx, each.id, at_ms=ctx.clock.now_ms())
    return changed


def _is_settled(sweep: OpenSweep) -> bool:
    """Return True for a sweep whose row says what its jobs' rows say, and that has no budget to look after."""
    if sweep_end(sweep.counts) is not None or sweep.step != _ended(sweep.counts):
        return False
    if sweep.state != (JobState.PAUSED if stands_still(sweep.counts) else JobState.RUNNING):
        return False
    return sweep.budget_micro_usd is None and not sweep.counts.get(JobState.PAUSED)


def settle_sweep(tx: Transaction, ctx: Context, sweep_id: str, *, at_ms: int) -> bool:
    """Hold the sweep, and bring its jobs and itself to where they belong. Return True when something changed."""
    sweep = tx.jobs.lock(sweep_id)
    if sweep is None or sweep.kind != SWEEP_KIND or sweep.state in TERMINAL:
        return False
    rows = tx.sweeps.jobs(sweep_id)
    moved = _apply_budget(tx, sweep, rows, at_ms=at_ms)
    counts = Counter(each.state for each in (tx.sweeps.jobs(sweep_id) if moved else rows))
    ended = _ended(counts)
    if ended != sweep.step:
        tx.jobs.update(sweep_id, step=ended)
    return _follow(tx, ctx, sweep, counts, at_ms=at_ms) or moved or ended != sweep.step


def _apply_budget(tx: Transaction, sweep: JobRow, rows: Sequence[SweptRow], *, at_ms: int) -> bool:
    """Queue the jobs for which there is room, and hold the others back; True when a job moved."""
    waits = any(row.paused_by == Payer.SWEEP and row.state is JobState.PAUSED for row in rows)
    if sweep.budget_micro_usd is None and not waits:
        return False
    spent = tx.spending.of_jobs([row.id for row in rows])
    jobs = _in_order(sweep, rows, spent)
    plan = plan_sweep(jobs, budget_micro_usd=sweep.budget_micro_usd)
    budget = Budget(
        payer=Payer.SWEEP,
        limit_micro_usd=sweep.budget_micro_usd or 0,
        spent_micro_usd=sum(spent.values()),
    )
    _warn(tx, sweep, budget, at_ms=at_ms)
    begins, moved = frozenset(plan.begin), False
    for job_id in sorted((*plan.begin, *plan.hold_back)):  # the order in which everybody locks jobs
        job = tx.jobs.lock(job_id)
        if job is None:
            continue
        if job_id in begins and job.state is JobState.PAUSED:
            resume_job(tx, job, at_ms=at_ms)
            moved = True
        elif job_id not in begins and job.state is JobState.QUEUED and tx.attempts.live_of_job(job_id) is None:
            pause_job(tx, job, budget, at_ms=at_ms)
            moved = True
    return moved


def _in_order(sweep: JobRow, rows: Sequence[SweptRow], spent: Mapping[str, int]) -> list[SweptJob]:
    """Return the jobs in the sweep's order, with what they have spent."""
    by_id = {row.id: row for row in rows}
    return [
        SweptJob(
            id=row.id,
            state=row.state,
            begun=row.attempt_count > 0,
            held_back=row.state is JobState.PAUSED and row.paused_by == Payer.SWEEP,
            spent_micro_usd=spent.get(row.id, 0),
            total_steps=row.total_steps or 0,
            likely_micro_usd=each["likely_cost_micro_usd"],
        )
        for each in sweep.spec["jobs"]
        if (row := by_id.get(each["job"])) is not None
    ]


def _warn(tx: Transaction, sweep: JobRow, budget: Budget, *, at_ms: int) -> None:
    if sweep.budget_micro_usd is None or sweep.budget_warned_at_ms is not None or not budget.nearly:
        return
    tx.jobs.update(sweep.id, budget_warned_at_ms=at_ms)
    tx.events.add(sweep.id, sweep.project_id, EventType.BUDGET_WARNING, None, told(budget), at_ms)


def _follow(tx: Transaction, ctx: Context, sweep: JobRow, counts: Counts, *, at_ms: int) -> bool:
    """Let the sweep's state follow its jobs': paused while none may go on, ended when all have. True: it changed."""
    end = sweep_end(counts)
    if end is not None:
        _end(tx, ctx, _going(tx, sweep), end, counts, at_ms=at_ms)
        return True
    if stands_still(counts):
        if sweep.state is JobState.PAUSED:
            return False
        tx.jobs.change(sweep, JobEvent.PAUSE, paused_by=Payer.SWEEP)
        tx.events.add(sweep.id, sweep.project_id, EventType.JOB_PAUSED, None, {"budget": Payer.SWEEP}, at_ms)
        return True
    going = _going(tx, sweep)
    if going is not sweep:
        tx.events.add(sweep.id, sweep.project_id, EventType.JOB_RESUMED, None, {"resume_step": sweep.step}, at_ms)
    return going is not sweep


def _going(tx: Transaction, sweep: JobRow) -> JobRow:
    """Return the sweep, which is running again if it was paused."""
    if sweep.state is not JobState.PAUSED:
        return sweep
    queued = replace(sweep, state=tx.jobs.change(sweep, JobEvent.RESUME, paused_by=None))
    return replace(queued, state=tx.jobs.change(queued, JobEvent.CLAIM))


def _end(tx: Transaction, ctx: Context, sweep: JobRow, end: JobEvent, counts: Counts, *, at_ms: int) -> None:
    result = {str(state): counts[state] for state in sorted(TERMINAL) if counts.get(state)}
    error = "no job of the sweep succeeded" if end is JobEvent.FAIL else None
    state = tx.jobs.change(sweep, end, ended_at_ms=at_ms, result=result, error=error)
    data: Mapping[JobEvent, Mapping[str, object]] = {
        JobEvent.SUCCEED: {"step": counts[JobState.SUCCEEDED]},
        JobEvent.FAIL: {"error": error, "faults": []},
        JobEvent.CANCEL: {"by": sweep.id},
    }
    tx.events.add(sweep.id, sweep.project_id, _TYPES[end], None, dict(data.get(end, {})), at_ms)
    ctx.durations.ended(sweep, state, at_ms=at_ms)


def _ended(counts: Counts) -> int:
    return sum(count for state, count in counts.items() if state in TERMINAL)
