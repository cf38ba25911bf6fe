"""The end of a job that a claim has taken and no node can begin: what its spec names cannot be handed to any node.

No attempt is made, so no machine is blamed and nothing is billed.
"""

from collections.abc import Sequence

from giornata.control.end_attempt import end_attempt
from giornata.control.ports.store import Transaction
from giornata.control.ports.work_rows import AttemptRow, JobRow
from giornata.domain.errors import Fault
from giornata.domain.job import JobEvent
from giornata.domain.reasons import Reason
from giornata.protocol.events import EventType


def fail_unbegun(tx: Transaction, job: JobRow, faults: Sequence[Fault], *, at_ms: int) -> None:
    """Fail a job that was taken in this transaction. The job is as it was before it was taken, but for its end."""
    as_before = {"attempt_count": job.attempt_count - 1, "attempt_id": None}
    if job.attempt_count == 1:
        as_before["started_at_ms"] = None
    _fail(tx, job, faults, attempt=None, at_ms=at_ms, **as_before)


def fail_begun(tx: Transaction, job: JobRow, attempt: AttemptRow, faults: Sequence[Fault], *, at_ms: int) -> None:
    """Fail a job whose live attempt was promised to a node that never got its lease. Nobody is blamed."""
    message = _words(faults)
    end_attempt(tx, job, attempt, reason=Reason.RELEASED, at_ms=at_ms, alive=True, message=message)
    _fail(tx, job, faults, attempt=attempt.number, at_ms=at_ms)


def _fail(
    tx: Transaction,
    job: JobRow,
    faults: Sequence[Fault],
    *,
    attempt: int | None,
    at_ms: int,
    **columns: int | None,
) -> None:
    told = [{"where": each.where, "message": each.message, "hint": each.hint} for each in faults]
    error = _words(faults)
    tx.jobs.change(job, JobEvent.FAIL, ended_at_ms=at_ms, error=error, faults=told, phase="", **columns)
    tx.events.add(job.id, job.project_id, EventType.JOB_FAILED, attempt, {"error": error, "faults": told}, at_ms)


def _words(faults: Sequence[Fault]) -> str:
    return "; ".join(f"{each.message}: {each.hint}" for each in faults)
