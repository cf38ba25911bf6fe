"""End an attempt: the fence falls, the ledger closes, the history says so. The job's fate is decided elsewhere."""

from collections.abc import Mapping
from typing import Any

from giornata.control.ports.store import Transaction
from giornata.control.ports.work_rows import AttemptRow, JobRow
from giornata.domain.errors import LeaseLost
from giornata.domain.reasons import BLAME, Reason
from giornata.protocol.events import EventType


def end_attempt(
    tx: Transaction,
    job: JobRow,
    attempt: AttemptRow,
    *,
    reason: Reason,
    at_ms: int,
    alive: bool,
    message: str = "",
    step: int | None = None,
    exit_code: int | None = None,
    log_tail: str = "",
    shared_fault: bool = False,
) -> AttemptRow:
    """End it; the row as it is then. The job must be locked. Raises LeaseLost when it has ended already.

    `shared_fault`: others were ended by the same fault, and nobody can tell whose it was.

    `alive` says that the node itself is speaking now. Otherwise it is billed up to now only while its lease runs,
    and up to its last sign of life when the lease is over.
    """
    last_sign_ms = at_ms if alive or attempt.lease_expires_at_ms > at_ms else attempt.renewed_at_ms
    signs: Mapping[str, Any] = {"renewed_at_ms": max(attempt.renewed_at_ms, last_sign_ms)} if alive else {}
    ended = tx.attempts.update_live(
        attempt.id,
        ended_at_ms=max(at_ms, attempt.started_at_ms),
        reason=reason,
        message=message,
        exit_code=exit_code,
        log_tail=log_tail,
        shared_fault=shared_fault,
        last_step=max(attempt.last_step, step or 0),
        **signs,
    )
    if ended is None:
        raise LeaseLost(f"attempt {attempt.id} has ended")
    if not attempt.lapsed:
        tx.ledger.extend_each([attempt.id], to_ms=last_sign_ms)
    data = {
        "reason": reason,
        "blame": BLAME[reason],
        "message": message,
        "step": ended.last_step,
        "exit_code": exit_code,
        "log_tail": log_tail,
    }
    tx.events.add(job.id, job.project_id, EventType.ATTEMPT_ENDED, attempt.number, data, at_ms)
    return ended
