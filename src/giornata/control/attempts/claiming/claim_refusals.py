"""Claims that hand out no job: the queue holds none for the node, or the job that was taken cannot begin anywhere.

A job cannot begin when its spec names something that cannot be handed to any node. Such a job fails without an
attempt: no machine is blamed and nothing is billed.
"""

from collections.abc import Sequence

from giornata.control.attempts.ending.end_attempt import end_attempt
from giornata.control.ports.node_queries.work_rows import (
    AttemptRow,
    JobRow,
    Wanted,
)
from giornata.control.ports.store import Transaction
from giornata.domain.errors import Fault
from giornata.domain.jobs.attempt import most_leases
from giornata.domain.jobs.job import JobEvent
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.events import EventType
from giornata.protocol.node.work import ClaimReply


def fail_unbegun(tx: Transaction, job: JobRow, faults: Sequence[Fault], *, at_ms: int) -> None:
    """Fail a job that was taken in this transaction. The job is as it was before it was taken, but for its end."""
    as_before = {"attempt_count": job.attempt_count - 1, "attempt_id": None}
    if job.attempt_count == 1:
        as_before["started_at_ms"] = None
    _fail(tx, job, faults, attempt=None, at_ms=at_ms, **as_before)


def fail_begun(tx: Transaction, job: JobRow, attempt: AttemptRow, faults: Sequence[Fault], *, at_ms: int) -> None:
    """Fail a job whose live attempt was promised to a node that never got its lease. No machine is blamed."""
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


def unusable_reply(job: JobRow) -> ClaimReply:
    """Return the reply to the node that took a job which cannot begin."""
    detail = f"the job {job.id} could not begin anywhere, and has failed; ask again for another"
    return ClaimReply(reason="unusable-job", detail=detail)


def draining_reply() -> ClaimReply:
    """Return the reply to a node that leaves: it gets no job."""
    return ClaimReply(reason="draining", detail="this node is to leave and gets no more work", drain=True)


def full_reply(places: int) -> ClaimReply:
    """Return the reply to a node that holds as many leases as it may: it gets no job before one of them ends."""
    most = most_leases(places)
    detail = f"this node holds as many leases as it may ({most} with --places {places}); it gets more when one ends"
    return ClaimReply(reason="leases-held", detail=detail)


def empty_reply(tx: Transaction, wanted: Wanted) -> ClaimReply:
    """Return the reply to a node that gets no job, with the reason that the store finds in the queue."""
    reason = tx.jobs.why_nothing(wanted)
    memory = _gigabytes(wanted.vram_bytes)
    details = {
        "empty-queue": "no job is waiting",
        "too-small": f"every job that waits needs more GPU memory than the {memory} of this node",
        "project-at-ceiling": "the jobs that wait are of projects that run as many as they may",
        "for-another": "the jobs that wait are each for one other machine",
        "banned": "every job that waits has failed on this machine before, and comes back if no other can take it",
        "no-such-kind": f"jobs are waiting, but of none of the kinds {', '.join(wanted.kinds)}",
        "no-such-companion": "no job that could join those with this joint key is waiting",
    }
    return ClaimReply(reason=reason, detail=details[reason])


def _gigabytes(size_bytes: int | None) -> str:
    return "0 GB" if size_bytes is None else f"{size_bytes / 1e9:.1f} GB"
