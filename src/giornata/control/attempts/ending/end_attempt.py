"""End attempts: the fence falls, the ledger closes, the history says so. The job's fate is decided elsewhere."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from giornata.control.ports.node_queries.work_rows import AttemptRow, JobRow, NewEvent
from giornata.control.ports.store import Transaction
from giornata.domain.errors import LeaseLost
from giornata.domain.jobs.reasons import BAN, BLAME, Reason
from giornata.protocol.events import EventType


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnd:
    """The end of an attempt, with its reason and the node's last report.

    `alive` says that the node itself is speaking now. Otherwise the attempt is billed up to now only while its lease
    runs, and up to its last sign of life when the lease is over. `shared_fault`: the same fault ended other attempts,
    and its cause is unknown.
    """

    job: JobRow
    attempt: AttemptRow
    reason: Reason
    alive: bool
    message: str = ""
    step: int | None = None
    exit_code: int | None = None
    log_tail: str = ""
    shared_fault: bool = False

    @property
    def last_step(self) -> int:
        """The last step that the attempt is known to have reached."""
        return max(self.attempt.last_step, self.step or 0)

    def last_sign_ms(self, at_ms: int) -> int:
        """Return the instant up to which the attempt is billed."""
        return at_ms if self.alive or self.attempt.lease_expires_at_ms > at_ms else self.attempt.renewed_at_ms


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
) -> None:
    """End one attempt, as `end_attempts` does; see `AttemptEnd`."""
    ending = AttemptEnd(
        job=job,
        attempt=attempt,
        reason=reason,
        alive=alive,
        message=message,
        step=step,
        exit_code=exit_code,
        log_tail=log_tail,
        shared_fault=shared_fault,
    )
    end_attempts(tx, [ending], at_ms=at_ms)


def end_attempts(
    tx: Transaction, endings: Sequence[AttemptEnd], *, at_ms: int, events: Sequence[NewEvent] = ()
) -> None:
    """End the attempts, and add the events behind those of the ends. The jobs must be locked.

    The end of a lease of pictures is told only where something went wrong: an order has thousands of leases.

    Raises LeaseLost when one has ended already.
    """
    if not tx.attempts.update_live_each({each.attempt.id: _columns(each, at_ms=at_ms) for each in endings}):
        raise LeaseLost(f"of the attempts {', '.join(each.attempt.id for each in endings)} one has ended")
    billed: dict[int, list[str]] = defaultdict(list)
    leased: dict[int, list[str]] = defaultdict(list)
    for each in endings:
        if not each.attempt.lapsed:
            (leased if each.attempt.pictures else billed)[each.last_sign_ms(at_ms)].append(each.attempt.id)
    for to_ms, attempt_ids in billed.items():
        tx.ledger.extend_each(attempt_ids, to_ms=to_ms)
    for to_ms, attempt_ids in leased.items():
        tx.picture_leases.extend_bills(attempt_ids, to_ms=to_ms)
    told = [_event(each, at_ms=at_ms) for each in endings if not each.attempt.pictures or BAN[each.reason]]
    tx.events.add_each([*told, *events])


def _columns(ending: AttemptEnd, *, at_ms: int) -> Mapping[str, Any]:
    attempt = ending.attempt
    return {
        "renewed_at_ms": max(attempt.renewed_at_ms, at_ms) if ending.alive else attempt.renewed_at_ms,
        "ended_at_ms": max(at_ms, attempt.started_at_ms),
        "reason": ending.reason,
        "message": ending.message,
        "exit_code": ending.exit_code,
        "log_tail": ending.log_tail,
        "shared_fault": ending.shared_fault,
        "last_step": ending.last_step,
    }


def _event(ending: AttemptEnd, *, at_ms: int) -> NewEvent:
    return NewEvent(
        job_id=ending.job.id,
        project_id=ending.job.project_id,
        type=EventType.ATTEMPT_ENDED,
        attempt_number=ending.attempt.number,
        data={
            "reason": ending.reason,
            "blame": BLAME[ending.reason],
            "message": ending.message,
            "step": ending.last_step,
            "exit_code": ending.exit_code,
            "log_tail": ending.log_tail,
        },
        at_ms=at_ms,
    )
