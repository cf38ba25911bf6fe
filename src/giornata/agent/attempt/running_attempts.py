"""The attempts that are at work on a node, and their names in its log."""

import queue
import threading
from contextlib import ExitStack
from dataclasses import dataclass

from giornata.agent.attempt.attempt import AttemptRunner
from giornata.agent.attempt.events import Abandoned, AttemptFailed, AttemptOutcome, Finished, Released
from giornata.domain.telemetry import log_about
from giornata.protocol.node.pictures import PictureLease
from giornata.protocol.node.work import AnyLease


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedAttempt:
    """An attempt that is over: its outcome, or the exception that ended it."""

    lease: AnyLease
    told_to_leave: bool
    outcome: AttemptOutcome | None = None
    defect: BaseException | None = None


class RunningAttempts:
    """The attempts of a node, each in a thread of its own. Only the node's own thread uses this object."""

    def __init__(self) -> None:
        self._attempts: dict[str, AttemptRunner] = {}
        self._leases: dict[str, AnyLease] = {}
        self._ended: queue.SimpleQueue[EndedAttempt] = queue.SimpleQueue()

    def __len__(self) -> int:
        return len(self._attempts)

    @property
    def engaged(self) -> tuple[str, ...]:
        """The attempts that need the engine, or will need it."""
        return tuple(each for each, attempt in self._attempts.items() if attempt.needs_engine)

    @property
    def pictures_left(self) -> int | None:
        """The pictures that the engine has still to draw, of all leases; None while a job is at work."""
        left = [attempt.pictures_left for attempt in self._attempts.values()]
        return None if None in left else sum(each or 0 for each in left)

    @property
    def base_keys(self) -> tuple[str, ...]:
        """The base models of the pictures at work, each once."""
        keys = (lease.base_key for lease in self._leases.values() if isinstance(lease, PictureLease))
        return tuple(dict.fromkeys(key for key in keys if key))

    @property
    def told_to_leave(self) -> bool:
        """True when an attempt was told that the node has to leave."""
        return any(attempt.told_to_leave for attempt in self._attempts.values())

    def begin(self, lease: AnyLease, attempt: AttemptRunner, belongings: ExitStack) -> None:
        """Run the attempt at this lease; `belongings` are closed when it has ended."""
        self._attempts[lease.attempt_id], self._leases[lease.attempt_id] = attempt, lease

        def run() -> None:
            outcome, defect = None, None
            try:
                with belongings, log_about(**fields_of(lease)):
                    outcome = attempt.run()
            except BaseException as error:  # noqa: BLE001 - handed on to the node's own thread, which raises it
                defect = error
            told_to_leave = attempt.told_to_leave
            self._ended.put(EndedAttempt(lease=lease, told_to_leave=told_to_leave, outcome=outcome, defect=defect))

        # Not waited for by an interpreter that ends: what has to be done in order is done by `next_ended`.
        threading.Thread(target=run, name=f"attempt-{lease.attempt_id}", daemon=True).start()

    def next_ended(self, timeout_s: float | None) -> EndedAttempt | None:
        """Wait for an attempt to end, and forget it. Returns None when no attempt ends in time."""
        try:
            ended = self._ended.get(timeout=timeout_s)
        except queue.Empty:
            return None
        del self._attempts[ended.lease.attempt_id], self._leases[ended.lease.attempt_id]
        return ended


def name_of(lease: AnyLease) -> str:
    """Return the name of a lease's work for the node's own log."""
    if isinstance(lease, PictureLease):
        return f"lease {lease.attempt_id} of {len(lease.pictures)} pictures"
    return f"attempt {lease.attempt} of job {lease.job_id} ({lease.kind})"


def fields_of(lease: AnyLease) -> dict[str, str]:
    """Return the fields that log lines about the lease carry."""
    job = {} if isinstance(lease, PictureLease) else {"job": lease.job_id}
    return {**job, "attempt": lease.attempt_id}


def describe(outcome: AttemptOutcome) -> str:
    """Return one line for the node's own log."""
    match outcome:
        case Finished():
            return f"done at step {outcome.step}"
        case Released():
            return f"given back ({outcome.reason}): {outcome.message}"
        case Abandoned():
            return f"dropped: {outcome.why}"
        case AttemptFailed():
            others = f", together with {len(outcome.together) - 1} others" if outcome.together else ""
            return f"failed ({outcome.reason}{others}): {outcome.message}"
