"""The rules of a sweep: which of its jobs may begin under its budget, and what becomes of it when they have ended.

Money is integer micro-dollars.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from giornata.domain.billing.budget import reservation_micro_usd
from giornata.domain.jobs.job import TERMINAL, JobEvent, JobState

SWEEP_KIND = "sweep"
"""The kind of the parent job. No node gets such a job; nodes get the training jobs that belong to it."""
MOST_SWEPT = 64
"""Training jobs that a sweep may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptJob:
    """A job of a sweep, as far as its sweep's budget is concerned.

    `likely_micro_usd` is what the job costs if it is like the ones before it; None when that is unknown. `held_back`
    says that the job waits for the sweep's budget; `begun` that a node had it once.
    """

    id: str
    state: JobState
    begun: bool
    held_back: bool
    spent_micro_usd: int
    total_steps: int
    likely_micro_usd: int | None

    @property
    def may_begin(self) -> bool:
        """True for a job that has not begun, or that was stopped by the sweep's budget: it could be held back."""
        return self.held_back or (self.state is JobState.QUEUED and not self.begun)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """Ids of jobs that the sweep's budget lets go on, and of those that it has no room for, in the sweep's order."""

    begin: tuple[str, ...] = ()
    hold_back: tuple[str, ...] = ()


def plan_sweep(jobs: Sequence[SweptJob], *, budget_micro_usd: int | None) -> SweepPlan:
    """Return which jobs change between queue and waiting for the sweep's budget.

    Jobs at work keep aside what they may still cost; what is left is given to the others in the sweep's order, first
    to those that are queued already. While the cost of such a job is unknown, one begins at a time.
    """
    if budget_micro_usd is None:
        return SweepPlan(begin=tuple(job.id for job in jobs if job.held_back))
    at_work = [job for job in jobs if job.state not in TERMINAL and not job.may_begin]
    spent = sum(job.spent_micro_usd for job in jobs)
    room = budget_micro_usd - spent - sum(_still_micro_usd(job, jobs) or 0 for job in at_work)
    alone = not at_work
    begin, hold_back = list[str](), list[str]()
    for job in sorted((job for job in jobs if job.may_begin), key=lambda job: job.held_back):
        still = _still_micro_usd(job, jobs)
        fits = alone and spent < budget_micro_usd if still is None else max(still, 1) <= room
        if fits:
            room, alone = room - (still or 0), False
        if fits == job.held_back:
            (begin if fits else hold_back).append(job.id)
    if spent >= budget_micro_usd:
        hold_back += [job.id for job in at_work if job.state is JobState.QUEUED]
    return SweepPlan(begin=tuple(begin), hold_back=tuple(hold_back))


def _still_micro_usd(job: SweptJob, jobs: Sequence[SweptJob]) -> int | None:
    """Return what the job may still cost; None when that is unknown. A job without any figure costs at most what a
    step of the sweep's finished jobs did, for each step.
    """
    likely = job.likely_micro_usd
    if likely is None:
        done = [each for each in jobs if each.state is JobState.SUCCEEDED and each.total_steps]
        costs = [-(-each.spent_micro_usd * job.total_steps // each.total_steps) for each in done]
        likely = max(costs, default=None)
    if likely is None:
        return None
    return max(0, reservation_micro_usd(budget=None, estimate=likely) - job.spent_micro_usd)


def sweep_end(counts: Mapping[JobState, int]) -> JobEvent | None:
    """Return how a sweep ends whose jobs are in these states; None while one of them has not ended.

    It succeeds if one of its jobs did; otherwise it fails if one failed.
    """
    if any(count for state, count in counts.items() if state not in TERMINAL):
        return None
    if counts.get(JobState.SUCCEEDED):
        return JobEvent.SUCCEED
    if counts.get(JobState.FAILED):
        return JobEvent.FAIL
    return JobEvent.EXPIRE if counts.get(JobState.EXPIRED) else JobEvent.CANCEL


def stands_still(counts: Mapping[JobState, int]) -> bool:
    """Return True when some jobs of a sweep have not ended and all of these are paused."""
    unfinished = Counter({state: count for state, count in counts.items() if state not in TERMINAL and count})
    return set(unfinished) == {JobState.PAUSED}
