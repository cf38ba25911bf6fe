"""Lift bans of jobs from machines where no other machine can take the job: see `domain.jobs.backoff`.

A job that needs more GPU memory than every connected node has fails, with what its engine said: no connected node
can ever do it.
"""

from collections.abc import Collection
from dataclasses import dataclass

from giornata.control.attempts.claiming.outlooks import Outlooks
from giornata.control.attempts.ending.end_attempt import end_attempt
from giornata.control.attempts.ending.judge_machines import judge_failure
from giornata.control.attempts.ending.requeue import fail_job
from giornata.control.context import Context
from giornata.control.ports.node_queries.machine_store import BannedJob
from giornata.control.ports.node_queries.work_rows import JobRow
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.records import JobRecord
from giornata.domain.jobs.backoff import Obstacle, Outlook
from giornata.domain.jobs.job import JobState
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.events import EventType

AT_MOST = 500
NO_OTHER = "no other machine is connected that could take the job"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifted:
    """The results of one turn; false when the turn did nothing."""

    lifted: int = 0
    failed: int = 0

    def __bool__(self) -> bool:
        return bool(self.lifted or self.failed)


def lift_bans(ctx: Context) -> Lifted:
    """Lift the bans that are due, one for each job that needs it. A loop calls it again and again."""
    with ctx.store.only_here("bans") as ours:
        if not ours:
            return Lifted()
        now_ms = ctx.clock.now_ms()
        with ctx.store.read() as tx:
            due = _due(tx, ctx, at_ms=now_ms)
        # One transaction each: a long one would hold up the claims of all the others.
        lifted = sum(_lift_one(ctx, job, found) for job, found in due if found.obstacle is Obstacle.BANNED)
        failed = sum(_give_up(ctx, job, found) for job, found in due if found.obstacle is Obstacle.TOO_SMALL)
        return Lifted(lifted=lifted, failed=failed)


def lift(tx: Transaction, job: JobRow | JobRecord, machine_ids: Collection[str], *, because: str, at_ms: int) -> None:
    """Let these machines have the locked job again, and say so in its history."""
    tx.bans.lift(job.id, machine_ids)
    data = {"name": "ban-lifted", "machine_ids": sorted(machine_ids), "message": because}
    tx.events.add(job.id, job.project_id, EventType.NOTICE, None, data, at_ms)


def _due(tx: Transaction, ctx: Context, *, at_ms: int) -> list[tuple[BannedJob, Outlook]]:
    outlooks = Outlooks(tx, ctx, at_ms=at_ms)
    waiting = tx.bans.waiting(outlooks.kinds) if outlooks.kinds else ()
    found = ((job, outlooks.of(job)) for job in waiting)
    due = [(job, each) for job, each in found if each is not None and each.at_ms is not None and each.at_ms <= at_ms]
    return due[:AT_MOST]


def _lift_one(ctx: Context, job: BannedJob, found: Outlook) -> bool:
    with ctx.store.begin() as tx:
        row = _unchanged(tx, job)
        if row is None or found.machine_id is None:
            return False
        lift(tx, row, [found.machine_id], because=NO_OTHER, at_ms=ctx.clock.now_ms())
        return True


def _unchanged(tx: Transaction, job: BannedJob) -> JobRow | None:
    """Return the job, locked, if it still waits as it did when it was looked at."""
    row = tx.jobs.lock(job.id)
    same = row is not None and row.state is JobState.QUEUED and tuple(tx.bans.of_job(job.id)) == job.bans
    return row if same else None


def _give_up(ctx: Context, job: BannedJob, found: Outlook) -> bool:
    with ctx.store.begin() as tx:
        row = _unchanged(tx, job)
        attempt = None if row is None or row.attempt_id is None else tx.attempts.get(row.attempt_id)
        if row is None or attempt is None:
            return False
        now_ms = ctx.clock.now_ms()
        _end_silent(tx, row, at_ms=now_ms)
        why = f"none of the {found.hosts} connected nodes has the {job.min_vram_bytes / 1e9:.1f} GB that it needs"
        error = f"{_last_words(tx, row)} ({Reason.NODE_TOO_SMALL}: {why})"
        fail_job(tx, ctx, row, attempt, error=error, faults=(), at_ms=now_ms)
        # Crashes of a job that failed in the end say nothing against machines.
        judge_failure(tx, ctx, row, attempt, Reason.NODE_TOO_SMALL, at_ms=now_ms, job_failed=True)
        return True


def _end_silent(tx: Transaction, job: JobRow, *, at_ms: int) -> None:
    """End a lapsed attempt, which could still come back: a job that has ended has none."""
    silent = tx.attempts.live_of_job(job.id)
    if silent is not None:
        end_attempt(tx, job, silent, reason=Reason.LEASE_EXPIRED, at_ms=at_ms, alive=False, message="it fell silent")


def _last_words(tx: Transaction, job: JobRow) -> str:
    """Return the message of the last attempt that found its node too small."""
    said = [
        each.message
        for each in tx.job_reads.attempts([job.id], project_id=job.project_id)
        if each.reason == Reason.NODE_TOO_SMALL and each.message
    ]
    return said[-1] if said else "the job needs more GPU memory than the node has"
