"""A job's states, as a table."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from giornata.domain.errors import IllegalTransition


class JobState(StrEnum):
    """States of a job. The last four are terminal: they never change."""

    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"  # no node gets it until somebody lets it go on: its budget is used up
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    EXPIRED = "expired"


class JobEvent(StrEnum):
    """Events that change the state of a job."""

    CLAIM = "claim"  # a node took it
    LAPSE = "lapse"  # the lease ran out; the attempt may still come back while nobody else took the job
    RENEW = "renew"  # ... and it did
    REQUEUE = "requeue"  # the attempt ended without blame on the job
    PAUSE = "pause"  # its budget is used up
    RESUME = "resume"  # ... and was raised
    SUCCEED = "succeed"
    FAIL = "fail"
    CANCEL = "cancel"
    EXPIRE = "expire"  # the deadline passed before it was done


Q, R, P = JobState.QUEUED, JobState.RUNNING, JobState.PAUSED

TRANSITIONS: Mapping[tuple[JobState, JobEvent], JobState] = MappingProxyType(
    {
        (Q, JobEvent.CLAIM): R,
        (R, JobEvent.LAPSE): Q,
        (Q, JobEvent.RENEW): R,
        (R, JobEvent.REQUEUE): Q,
        # A lapsed attempt may report its end while the job waits in the queue again.
        (Q, JobEvent.REQUEUE): Q,
        (R, JobEvent.PAUSE): P,
        (Q, JobEvent.PAUSE): P,
        (P, JobEvent.RESUME): Q,
        (R, JobEvent.SUCCEED): JobState.SUCCEEDED,
        (Q, JobEvent.SUCCEED): JobState.SUCCEEDED,
        (R, JobEvent.FAIL): JobState.FAILED,
        (Q, JobEvent.FAIL): JobState.FAILED,
        (Q, JobEvent.CANCEL): JobState.CANCELED,
        (R, JobEvent.CANCEL): JobState.CANCELED,
        (P, JobEvent.CANCEL): JobState.CANCELED,
        (Q, JobEvent.EXPIRE): JobState.EXPIRED,
        (R, JobEvent.EXPIRE): JobState.EXPIRED,
        (P, JobEvent.EXPIRE): JobState.EXPIRED,
    }
)

IMPORTED_FROM = "imported-from"
"""The label of a job that ended in another project, with its id there."""
TERMINAL: frozenset[JobState] = frozenset(JobState) - {source for source, _ in TRANSITIONS}
STANDS_STILL = TERMINAL | {JobState.PAUSED}
"""States that only a person, or nothing at all, changes."""


def next_state(state: JobState, event: JobEvent) -> JobState:
    """The state after `event`. Raises IllegalTransition when the table has no such row."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransition(f"cannot {event} a job that is {state}") from None


def sources(event: JobEvent) -> tuple[JobState, ...]:
    """The states in which `event` is allowed, for the WHERE of a guarded update."""
    return tuple(state for state, happened in TRANSITIONS if happened is event)
