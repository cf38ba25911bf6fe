"""Renew a lease. One that ran out may be renewed for as long as nobody else has the job."""

from typing import Any

from giornata.control.context import Context
from giornata.control.ports.store import Transaction
from giornata.control.ports.work_store import AttemptRow, JobRow
from giornata.domain.attempt import lease_expires_at_ms
from giornata.domain.errors import LeaseLost
from giornata.domain.job import JobEvent
from giornata.protocol.events import EventType


def renew_lease(
    tx: Transaction, ctx: Context, job: JobRow, attempt: AttemptRow, *, at_ms: int, **columns: Any
) -> AttemptRow:
    """Renew, bill up to now, and set more of the attempt's columns. The job must be locked. Raises LeaseLost."""
    renewed = tx.attempts.update_live(
        attempt.id,
        renewed_at_ms=max(attempt.renewed_at_ms, at_ms),
        lease_expires_at_ms=lease_expires_at_ms(now_ms=at_ms, lease_s=ctx.policy.lease_s),
        lapsed=False,
        **columns,
    )
    if renewed is None:
        raise LeaseLost(f"attempt {attempt.id} has ended; the job is {job.state}: drop it")
    if attempt.lapsed:
        _bring_back(tx, job, attempt, at_ms=at_ms)
    else:
        tx.ledger.extend(attempt.id, to_ms=at_ms)
    return renewed


def _bring_back(tx: Transaction, job: JobRow, attempt: AttemptRow, *, at_ms: int) -> None:
    # The lapse counted it among the attempts that brought nothing; that is open again.
    counted = attempt.committed_step <= attempt.start_step
    tx.jobs.change(job, JobEvent.RENEW, fruitless=max(0, job.fruitless - int(counted)))
    # The silence in between is nobody's bill; and if the clock was set back meanwhile, nothing is billed twice.
    tx.ledger.open(job, attempt, at_ms=max(at_ms, attempt.renewed_at_ms))
    tx.events.add(job.id, job.project_id, EventType.ATTEMPT_RENEWED, attempt.number, {}, at_ms)
