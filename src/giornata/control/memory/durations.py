"""Histograms of the times that jobs waited and took, as far as this process saw them."""

import threading
from collections.abc import Iterable

from giornata.control.ports.node_queries.work_rows import JobRow
from giornata.domain.jobs.job import JobState
from giornata.domain.telemetry import Histogram

MINUTE_S, HOUR_S = 60.0, 3600.0
WAIT_BOUNDS_S = (0.1, 0.5, 1.0, 5.0, 15.0, MINUTE_S, 5 * MINUTE_S, 15 * MINUTE_S, HOUR_S, 4 * HOUR_S, 24 * HOUR_S)
LENGTH_BOUNDS_S = (
    *(1.0, 10.0, MINUTE_S, 5 * MINUTE_S, 15 * MINUTE_S, 30 * MINUTE_S),
    *(HOUR_S, 2 * HOUR_S, 4 * HOUR_S, 8 * HOUR_S, 24 * HOUR_S),
)


class Durations:
    """Collects durations of jobs; may be used from any thread. A transaction that is rolled back is counted all the
    same.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waits: dict[str, Histogram] = {}
        self._lengths: dict[tuple[str, str], Histogram] = {}

    def claimed(self, jobs: Iterable[JobRow], *, at_ms: int) -> None:
        """Note that these jobs were handed out. A job that was handed out before has not waited since its
        submission.
        """
        with self._lock:
            for job in jobs:
                if job.attempt_count == 1:
                    waits = self._waits.get(job.kind) or self._waits.setdefault(job.kind, Histogram(WAIT_BOUNDS_S))
                    waits.observe(max(0, at_ms - job.created_at_ms) / 1000)

    def ended(self, job: JobRow, state: JobState, *, at_ms: int) -> None:
        """Note that the job is over. One that was never handed out took no time."""
        if job.started_at_ms is None:
            return
        with self._lock:
            lengths = self._lengths.setdefault((job.kind, state.value), Histogram(LENGTH_BOUNDS_S))
            lengths.observe(max(0, at_ms - job.started_at_ms) / 1000)

    def waits(self) -> dict[str, Histogram]:
        """Return the times from submission to the first attempt, in seconds, by kind."""
        with self._lock:
            return dict(self._waits)

    def lengths(self) -> dict[tuple[str, str], Histogram]:
        """Return the times from the first attempt to the end, in seconds, by kind and final state."""
        with self._lock:
            return dict(self._lengths)
