"""Renew leases. A lease that ran out may be renewed until another node has the job."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from giornata.control.context import Context
from giornata.control.ports.node_queries.work_rows import AttemptRow, JobRow
from giornata.control.ports.store import Transaction
from giornata.domain.errors import LeaseLost
from giornata.domain.jobs.attempt import lease_expires_at_ms
from giornata.domain.jobs.job import JobEvent
from giornata.protocol.events import EventType

# The job, its live attempt, and more of the attempt's columns to set.
Renewal = tuple[JobRow, AttemptRow, Mapping[str, Any]]


def renew_lease(tx: Transaction, ctx: Context, job: JobRow, attempt: AttemptRow, *, at_ms: int) -> AttemptRow:
    """Renew the lease of one attempt, as `renew_leases` does."""
    (renewed,) = renew_leases(tx, ctx, [(job, attempt, {})], at_ms=at_ms)
    return renewed


def renew_leases(tx: Transaction, ctx: Context, renewals: Sequence[Renewal], *, at_ms: int) -> list[AttemptRow]:
    """Renew the leases, bill up to now, and set the columns, which are the same ones for all. The jobs must be
    locked.

    Raises LeaseLost when an attempt has ended all the same.
    """
    columns_by_id = {
        attempt.id: {
            "renewed_at_ms": max(attempt.renewed_at_ms, at_ms),
            "lease_expires_at_ms": lease_expires_at_ms(now_ms=at_ms, lease_s=ctx.policy.lease_s),
            "lapsed": False,
            **columns,
        }
        for _, attempt, columns in renewals
    }
    if not tx.attempts.update_live_each(columns_by_id):
        raise LeaseLost(f"of the attempts {', '.join(columns_by_id)} one has ended: drop it")
    for job, attempt, _ in renewals:
        if attempt.lapsed:
            _bring_back(tx, job, attempt, at_ms=at_ms)
    running = [attempt for _, attempt, _ in renewals if not attempt.lapsed]
    tx.ledger.extend_each([attempt.id for attempt in running if not attempt.pictures], to_ms=at_ms)
    tx.picture_leases.extend_bills([attempt.id for attempt in running if attempt.pictures], to_ms=at_ms)
    return [_with(attempt, columns_by_id[attempt.id]) for _, attempt, _ in renewals]


def _with(attempt: AttemptRow, columns: Mapping[str, Any]) -> AttemptRow:
    known = {name: value for name, value in columns.items() if name in AttemptRow.__slots__}
    return dataclasses.replace(attempt, **known)


def _bring_back(tx: Transaction, job: JobRow, attempt: AttemptRow, *, at_ms: int) -> None:
    # The lapse counted it among the attempts that brought nothing; that is open again.
    counted = attempt.committed_step <= attempt.start_step
    tx.jobs.change(job, JobEvent.RENEW, fruitless=max(0, job.fruitless - int(counted)))
    # The silence in between is nobody's bill; and if the clock was set back meanwhile, nothing is billed twice.
    tx.ledger.open_each([(job, attempt)], at_ms=max(at_ms, attempt.renewed_at_ms))
    tx.events.add(job.id, job.project_id, EventType.ATTEMPT_RENEWED, attempt.number, {}, at_ms)
