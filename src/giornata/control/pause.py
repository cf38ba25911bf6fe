"""A job waits for money, and goes on."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from giornata.control.budgets import told
from giornata.control.ports.store import Transaction
from giornata.control.ports.work_rows import JobRow
from giornata.domain.budget import Budget
from giornata.domain.job import JobEvent, JobState
from giornata.protocol.events import EventType


def pause_job(
    tx: Transaction,
    job: JobRow,
    budget: Budget,
    *,
    at_ms: int,
    attempt_number: int | None = None,
    data: Mapping[str, Any] = MappingProxyType({}),
    **columns: Any,
) -> JobState:
    """Take a locked job off the queue, or keep it from going there, until this budget is raised.

    Its attempt must have ended. `data` is said as well, and `columns` are set.
    """
    begun = job.attempt_count > 0
    state = tx.jobs.change(job, JobEvent.PAUSE, paused_by=budget.payer, interrupted=begun, phase="", **columns)
    tx.events.add(job.id, job.project_id, EventType.JOB_PAUSED, attempt_number, {**told(budget), **data}, at_ms)
    return state


def resume_job(tx: Transaction, job: JobRow, *, at_ms: int) -> JobState:
    """Put a locked, paused job into the queue; one that ran goes ahead of those that never did."""
    state = tx.jobs.change(job, JobEvent.RESUME, paused_by=None)
    data = {"resume_step": job.committed_step}
    tx.events.add(job.id, job.project_id, EventType.JOB_RESUMED, None, data, at_ms)
    return state
