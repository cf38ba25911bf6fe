"""Queries for the end of life: what is deleted, what retention takes, and what is pinned.

Every method that takes rows takes at most `limit` of them, so that no transaction is long.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from giornata.control.ports.user_queries.records import UploadRecord
from giornata.domain.files.retention import KeptClass, Retention


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionRecord:
    """A job, a dataset or a project that was deleted. `objects` and `size_bytes` say what storage had of it.

    `finished_at_ms` is None while rows or bytes may be left.
    """

    id: int
    project_id: str
    what: str
    target_id: str
    asked_by: str
    asked_at_ms: int
    finished_at_ms: int | None = None
    objects: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenRows:
    """Rows that are gone, and what they named: hashes of bytes, sizes of objects by key, open uploads."""

    rows: int = 0
    sha256s: frozenset[str] = frozenset()
    objects: Mapping[str, int] = field(default_factory=dict)
    uploads: tuple[UploadRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenBlob:
    """The place of bytes whose row is gone."""

    key: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgedRows:
    """The sum of what retention would take of one class: rows, and the bytes that storage would lose with them. Bytes
    of logs, metrics and events are those of their texts in UTF-8, without what the database needs beside them.
    """

    count: int
    size_bytes: int
    oldest_at_ms: int | None
    examples: Sequence[str] = field(default=())


class Deletions(Protocol):
    """Queries that delete jobs, datasets and projects."""

    def begin(self, deletion: DeletionRecord) -> int:
        """Write the line that stays; return its id."""

    def note(self, deletion_id: int, *, objects: int, size_bytes: int) -> None:
        """Add what storage was freed of."""

    def finish(self, deletion_id: int, *, at_ms: int) -> None:
        """Note that nothing is left."""

    def unfinished(self, *, limit: int) -> list[DeletionRecord]:
        """Return deletions of which something may be left, oldest first."""

    def empty_job(self, job_id: str, *, at_ms: int) -> bool:
        """Hide the job, and blank what its user wrote; False when it is deleted already, or is not known."""

    def made_for(self, job_id: str, *, project_id: str) -> list[str]:
        """Return the ids of the validations and replay audits of a training job that are not deleted."""

    def swept_by(self, sweep_id: str) -> list[str]:
        """Return the ids of the jobs of a sweep that are not deleted, in order."""

    def pinned_of_job(self, job_id: str) -> list[str]:
        """Return what of the job is pinned: its id, or ids with steps."""

    def take_job_rows(self, job_id: str, *, limit: int) -> TakenRows:
        """Delete rows that hang on the job, until `rows` is 0. The newest event of all stays, blank."""

    def has_events(self, job_id: str) -> bool:
        """Return True when the job has events that a webhook waits for."""

    def attempt_ids(self, job_id: str) -> list[str]:
        """Return the ids of all attempts at the job, without those that drew its pictures."""

    def take_caches(self, project_id: str, attempt_ids: Collection[str]) -> frozenset[str]:
        """Forget what these attempts made for later jobs, unless a job of the project is alive; return the hashes."""

    def take_blobs(
        self, project_id: str, *, sha256s: Collection[str] = (), keys: Collection[str] = (), asked_before_ms: int
    ) -> list[TakenBlob]:
        """Delete the rows of those of these blobs that nothing refers to and that were not requested since."""

    def users_of_dataset(self, dataset_id: str, *, project_id: str, limit: int) -> list[str]:
        """Return the ids of jobs that have not ended and that read the dataset."""

    def drop_dataset(self, dataset_id: str, *, project_id: str) -> frozenset[str]:
        """Delete the dataset; return the hashes of its pictures."""

    def close_project(self, project_id: str, *, at_ms: int) -> bool:
        """Hide the project, lift its limits, and end its keys, members, invitations, sign-ins of devices, secrets and
        webhooks; False when it is hidden.
        """

    def is_closed(self, project_id: str) -> bool:
        """Return True when the project was deleted."""

    def live_jobs(self, project_id: str, *, limit: int, audits: bool = True) -> list[str]:
        """Return ids of jobs that have not ended; without `audits` none of the platform's own."""

    def jobs_left(self, project_id: str, *, limit: int) -> list[str]:
        """Return ids of ended jobs that are not deleted."""

    def datasets_left(self, project_id: str, *, limit: int) -> list[str]:
        """Return the ids of datasets of the project."""

    def take_project_rows(self, project_id: str, *, limit: int) -> TakenRows:
        """Delete models, caches, uploads, remembered requests and what else the project has besides its jobs."""


class RetentionQueries(Protocol):
    """Queries for what retention takes: rows of jobs that ended long ago, and datasets that are not used."""

    def of_project(self, project_id: str) -> Retention | None:
        """Return how long the project keeps what; None when there is no such project."""

    def set(self, project_id: str, retention: Retention) -> None:
        """Replace how many days the project keeps each kind of row. Does nothing when there is no such project."""

    def all_projects(self) -> dict[str, Retention]:
        """Return the projects that keep something for a limited time."""

    def aged(self, project_id: str, kept: KeptClass, *, before_ms: int) -> AgedRows:
        """Return what would be taken now."""

    def take(self, project_id: str, kept: KeptClass, *, before_ms: int, limit: int) -> TakenRows:
        """Delete rows of jobs that ended before this instant and are not pinned, or datasets. Nothing of a job that
        has not ended is taken.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class PinRecord:
    """Something that is pinned. `step` is that of a checkpoint."""

    target_id: str
    step: int | None = None


class Pins(Protocol):
    """Queries for pins of jobs, checkpoints and datasets."""

    def set(self, pin: PinRecord, *, project_id: str, pinned: bool) -> bool | None:
        """Pin or unpin; True when that changed something, None when the project has no such thing."""

    def of_project(self, project_id: str, *, limit: int) -> Sequence[PinRecord]:
        """Return what is pinned: jobs, datasets, then checkpoints."""
