"""One fault that ended several attempts on one engine: nobody is guilty, and everybody goes on alone.

A job that is in such a thing loses its joint key with it, so it happens to a job once at most.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from giornata.control.context import Context
from giornata.control.ports.store import Transaction
from giornata.control.ports.work_rows import AttemptRow, JobRow
from giornata.control.requeue import requeue
from giornata.domain.job import JobState
from giornata.domain.reasons import AMBIGUOUS_WHEN_SHARED, STRIKE
from giornata.protocol.work import FailAttempt


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFault:
    """Attempts of one node that one fault ended, this one among them, by id."""

    attempts: Mapping[str, AttemptRow]

    @property
    def speaker(self) -> str:
        """The attempt on which the machine's one strike hangs: all that report it agree which."""
        return min(self.attempts)


def shared_fault(tx: Transaction, job: JobRow, attempt: AttemptRow, report: FailAttempt) -> SharedFault | None:
    """None when it concerns this attempt only, tells whose fault it was, or the job ran alone.

    What a node names that is not on this node does not count.
    """
    others = set(report.together) - {attempt.id}
    if not others or job.joint_key is None or not AMBIGUOUS_WHEN_SHARED[report.reason]:
        return None
    there = [each for each in tx.attempts.get_each(sorted(others)).values() if each.node_id == attempt.node_id]
    return SharedFault(attempts={each.id: each for each in [attempt, *there]}) if there else None


def settle_shared_fault(  # noqa: PLR0917
    tx: Transaction,
    ctx: Context,
    job: JobRow,
    attempt: AttemptRow,
    report: FailAttempt,
    fault: SharedFault,
    *,
    at_ms: int,
) -> JobState:
    """No ban, and no failure of the job: it waits for a node of its own. The machine has one strike for all."""
    if STRIKE[report.reason] and attempt.id == fault.speaker:
        tx.judgements.strike(attempt, report.reason, at_ms=at_ms)
    count = len(fault.attempts)
    why = f"one fault ({report.reason}) ended {count} jobs in one engine, and nobody can tell whose it was"
    return requeue(tx, ctx, job, attempt, at_ms=at_ms, alone_because=why)
