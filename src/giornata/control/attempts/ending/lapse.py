"""Lapse leases that ran out: the job is queued again, and its attempt may resume until another node takes the job.

A lease of pictures ends at once instead: its pictures are queued again, and a node that comes back has lost at most
what one lease holds.

Leases count by the server's clock. When that is set back, those granted before would run on for as long as it was
wrong; they are cut to one lease from now, which is later than their nodes count on.
"""

from collections.abc import Sequence

from giornata.control.attempts.ending.end_attempt import end_attempt
from giornata.control.attempts.ending.judge_machines import judge_failure
from giornata.control.attempts.ending.requeue import fail_job, fruitless_after, requeue, verdict
from giornata.control.budgets.budgets import used_up
from giornata.control.context import Context
from giornata.control.pictures.failed_pictures import give_back_all
from giornata.control.ports.node_queries.work_rows import AttemptRow, JobRow
from giornata.control.ports.store import Transaction
from giornata.domain.jobs.attempt import CLOCKS_AGREE_MS
from giornata.domain.jobs.job import JobEvent
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.events import EventType

AT_MOST = 200
SILENT = "its node fell silent"


def lapse_leases(ctx: Context) -> int:
    """Requeue the jobs whose lease expired; return how many. A loop calls it again and again."""
    with ctx.store.only_here("lapse") as ours:
        if not ours:
            return 0
        now_ms, lease_ms = ctx.clock.now_ms(), round(ctx.policy.lease_s * 1000)
        with ctx.store.read() as tx:
            run_out = tx.attempts.run_out(at_ms=now_ms, limit=AT_MOST)
            ahead_ms = now_ms + CLOCKS_AGREE_MS
            too_long = tx.attempts.ahead(renewed_after_ms=ahead_ms, ends_after_ms=ahead_ms + lease_ms, limit=AT_MOST)
        for attempt_id in too_long:
            _cut_short(ctx, attempt_id, lease_ms=lease_ms)
        # One transaction each: a long one would hold up the heartbeats of all the others.
        return sum(_lapse(ctx, attempt_id) for attempt_id in run_out)


def end_leases(ctx: Context, attempt_ids: Sequence[str]) -> int:
    """Have these leases run out now, because their nodes have ended; return how many were dealt with.

    A node that lives in spite of it may renew its lease until another node has the job.
    """
    for attempt_id in attempt_ids:
        _cut_short(ctx, attempt_id, lease_ms=-1)
    return sum(_lapse(ctx, attempt_id) for attempt_id in attempt_ids)


def _cut_short(ctx: Context, attempt_id: str, *, lease_ms: int) -> None:
    """Let the lease run for `lease_ms` from now at most."""
    now_ms = ctx.clock.now_ms()
    with ctx.store.begin() as tx:
        job = tx.jobs.lock_of_attempt(attempt_id)
        attempt = tx.attempts.get(attempt_id)
        # Asked again: it may have been renewed by the right clock just now.
        if job is not None and attempt is not None and attempt.lease_expires_at_ms > now_ms + lease_ms:
            tx.attempts.update_live(attempt_id, lease_expires_at_ms=now_ms + lease_ms)


def _lapse(ctx: Context, attempt_id: str) -> bool:
    now_ms = ctx.clock.now_ms()
    with ctx.store.begin() as tx:
        job = tx.jobs.lock_of_attempt(attempt_id)
        attempt = tx.attempts.get(attempt_id)
        if job is None or attempt is None or attempt.ended_at_ms is not None or attempt.lapsed:
            return False
        if attempt.lease_expires_at_ms >= now_ms:
            return False  # it was renewed just now
        if attempt.pictures:
            _end_silent(tx, job, attempt, at_ms=now_ms)
            give_back_all(tx, ctx, attempt, Reason.LEASE_EXPIRED, message=SILENT, at_ms=now_ms)
            return True
        fruitless = fruitless_after(job, attempt)
        why = verdict(tx, ctx, job, attempt, reason=Reason.LEASE_EXPIRED, fruitless=fruitless)
        if why is None and used_up(tx, ctx, job, at_ms=now_ms) is not None:
            _end_silent(tx, job, attempt, at_ms=now_ms)
            requeue(tx, ctx, job, attempt, fruitless=fruitless, at_ms=now_ms)  # it pauses
        elif why is None:
            _back_to_queue(tx, job, attempt, fruitless=fruitless, at_ms=now_ms)
        else:
            _give_up(tx, ctx, job, attempt, why=why, at_ms=now_ms)
            judge_failure(tx, ctx, job, attempt, Reason.LEASE_EXPIRED, at_ms=now_ms, job_failed=True)
        return True


def _back_to_queue(tx: Transaction, job: JobRow, attempt: AttemptRow, *, fruitless: int, at_ms: int) -> None:
    tx.jobs.change(job, JobEvent.LAPSE, interrupted=True, fruitless=fruitless, phase="")
    tx.attempts.update_live(attempt.id, lapsed=True)
    tx.ledger.extend_each([attempt.id], to_ms=attempt.renewed_at_ms)  # billed up to the last sign of life
    tx.events.add(job.id, job.project_id, EventType.ATTEMPT_LAPSED, attempt.number, {}, at_ms)


def _give_up(tx: Transaction, ctx: Context, job: JobRow, attempt: AttemptRow, *, why: str, at_ms: int) -> None:
    _end_silent(tx, job, attempt, at_ms=at_ms)
    fail_job(tx, ctx, job, attempt, error=f"{SILENT}: {why}", faults=(), at_ms=at_ms)


def _end_silent(tx: Transaction, job: JobRow, attempt: AttemptRow, *, at_ms: int) -> None:
    end_attempt(tx, job, attempt, reason=Reason.LEASE_EXPIRED, at_ms=at_ms, alive=False, message=SILENT)
