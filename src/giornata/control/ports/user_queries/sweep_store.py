"""Queries for sweeps and their jobs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from giornata.control.ports.user_queries.records import ArtifactRecord, JobRecord
from giornata.domain.jobs.job import JobState


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSweep:
    """A sweep that has not ended, and its jobs counted by state."""

    id: str
    state: JobState
    step: int  # how many of its jobs had ended when it was settled last
    budget_micro_usd: int | None
    counts: Mapping[JobState, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptRow:
    """A job of a sweep, as far as its sweep needs to know."""

    id: str
    state: JobState
    attempt_count: int
    paused_by: str | None
    total_steps: int | None


class Sweeps(Protocol):
    """Queries for sweeps: jobs of kind `sweep`, to which training jobs belong."""

    def open_sweeps(self, *, limit: int) -> Sequence[OpenSweep]:
        """Return the sweeps of all projects that have not ended, by their ids."""

    def jobs(self, sweep_id: str) -> Sequence[SweptRow]:
        """Return the jobs of a sweep, by their ids. Locks none."""

    def spent(self, sweep_ids: Sequence[str]) -> Mapping[str, int]:
        """Return what all jobs of each sweep have cost, in micro-dollars."""

    def records(self, job_ids: Sequence[str], *, project_id: str) -> Sequence[JobRecord]:
        """Return those of the jobs that are the project's."""

    def losses(self, job_ids: Sequence[str], *, project_id: str) -> Mapping[str, float]:
        """Return the mean loss over the last tenth of the steps that each job has made, by the job's id."""

    def last_sheets(self, job_ids: Sequence[str], *, project_id: str) -> Mapping[str, ArtifactRecord]:
        """Return the last sheet of sample images of each job that has one; that of the end is the last."""
