"""The store's interface for jobs that come from another project's archive."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from giornata.control.ports.records import JobRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointToImport:
    """A checkpoint whose bytes the project has."""

    step: int
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactToImport:
    """A result whose bytes the project has."""

    name: str
    sha256: str
    size_bytes: int
    media_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricToImport:
    """The metrics of one step."""

    step: int
    attempt_number: int
    at_ms: int
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LineToImport:
    """A line of a log. `number` counts the lines of its attempt."""

    number: int
    attempt_number: int
    at_ms: int
    line: str


class ImportedJobs(Protocol):
    """Writes jobs that ended elsewhere."""

    def find(self, project_id: str, imported_from: str) -> str | None:
        """Return the job of the project that was imported from this one and is not deleted."""

    def add_results(
        self,
        job: JobRecord,
        *,
        attempt_id: str,
        checkpoints: Sequence[CheckpointToImport],
        artifacts: Sequence[ArtifactToImport],
        at_ms: int,
    ) -> None:
        """Insert checkpoints as those that a retry inherits, and artifacts of an attempt that lasted no time.

        There is no attempt without artifacts. No machine is named by it, and it costs nothing.
        """

    def add_history(self, job_id: str, *, metrics: Sequence[MetricToImport], lines: Sequence[LineToImport]) -> None:
        """Insert metrics and lines; those that are there already stay as they are."""
