"""The store's interface for jobs that come from another project's archive."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from giornata.control.ports.user_queries.records import AttemptRecord, JobRecord
from giornata.domain.generation.picture import PictureState
from giornata.protocol.events import EventType


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


@dataclass(frozen=True, slots=True, kw_only=True)
class EventToImport:
    """An event of a job's history. `number` counts the events of the job."""

    number: int
    type: EventType
    attempt_number: int | None
    data: Mapping[str, Any]
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureToImport:
    """A picture that had ended, with what its row has since then. Storage has its bytes, if it has any."""

    number: int
    state: PictureState
    lease: str | None
    sha256: str | None
    size_bytes: int | None
    flags: int
    place: int
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedPast:
    """The past of a job where it ran: its attempts by number, and the money that was billed there."""

    cost_micro_usd: int
    attempts: Sequence[AttemptRecord] = ()


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
        cost_micro_usd: int | None,
        at_ms: int,
    ) -> None:
        """Insert checkpoints as those that a retry inherits, and artifacts of an attempt that lasted no time. Note
        what the job cost elsewhere; None: that is not known.

        There is no attempt without artifacts. No machine is named by it, and it costs nothing.
        """

    def add_history(self, job_id: str, *, metrics: Sequence[MetricToImport], lines: Sequence[LineToImport]) -> None:
        """Insert metrics and lines; those that are there already stay as they are."""

    def add_events(self, job: JobRecord, events: Sequence[EventToImport]) -> None:
        """Insert events that no webhook gets; those whose numbers are there already stay as they are."""

    def add_attempts(self, attempts: Sequence[AttemptRecord]) -> None:
        """Insert attempts that were made elsewhere; those whose numbers are there already stay as they are."""

    def pasts(self, job_ids: Sequence[str]) -> Mapping[str, ImportedPast]:
        """Return what these jobs did elsewhere; those of which nothing is known are left out."""

    def adopt(self, sweep_id: str, job_ids: Sequence[str], *, project_id: str) -> None:
        """Let these jobs of the project belong to the sweep."""

    def awaited_pictures(self, order_id: str, numbers: Sequence[int]) -> Mapping[int, bool]:
        """Return which of these numbers are pictures of the order, and whether each is not imported yet."""

    def end_pictures(self, order_id: str, pictures: Sequence[PictureToImport]) -> set[int]:
        """Write what has come of those pictures that are not imported yet, and return their numbers."""
