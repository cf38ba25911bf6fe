"""End a job over its node's head: its owner canceled it, or its deadline passed."""

from collections.abc import Mapping
from typing import Any

from giornata.control.context import Context
from giornata.control.end_attempt import end_attempt
from giornata.control.ports.store import Transaction
from giornata.control.ports.work_rows import JobRow
from giornata.domain.job import JobEvent, JobState
from giornata.domain.reasons import Reason
from giornata.protocol.events import EventType

_TYPES: Mapping[JobEvent, EventType] = {
    JobEvent.CANCEL: EventType.JOB_CANCELED,
    JobEvent.EXPIRE: EventType.JOB_EXPIRED,
}


def stop_job(
    tx: Transaction,
    ctx: Context,
    job: JobRow,
    event: JobEvent,
    *,
    at_ms: int,
    message: str,
    data: Mapping[str, Any],
) -> JobState:
    """Apply CANCEL or EXPIRE to a locked job (`tx.jobs.lock`) and end its attempt in the same breath.

    The attempt is fenced and its bill closed now, not when its node hears of it: from here on whatever the node
    sends is refused with `lease-lost`, and the refusal names the job's state. Raises IllegalTransition.
    """
    state = tx.jobs.change(job, event, ended_at_ms=at_ms, paused_by=None)
    ctx.durations.ended(job, state, at_ms=at_ms)
    attempt = tx.attempts.live_of_job(job.id)
    number = None
    if attempt is not None:
        number = attempt.number
        end_attempt(tx, job, attempt, reason=Reason.CANCELED, at_ms=at_ms, alive=False, message=message)
    tx.events.add(job.id, job.project_id, _TYPES[event], number, data, at_ms)
    return state
