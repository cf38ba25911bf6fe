"""The queries of the user's verbs, in the groups that a transaction carries (`tx.projects`, `tx.keys`, …).

Everything that a key may ask for is asked with its project: a row of another project is not found.
Pages are newest first; `before` is the (created_at_ms, id) of the last row of the page before.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from giornata.control.ports.user_queries.records import (
    ArtifactRecord,
    AttemptRecord,
    BlobRecord,
    CacheRecord,
    CheckpointRecord,
    DatasetRecord,
    EventRecord,
    FinishedRecord,
    ItemRecord,
    JobInShort,
    JobRecord,
    KeyRecord,
    LogRecord,
    MetricRecord,
    NodeRecord,
    OrderFile,
    ProjectRecord,
    QueueView,
    Rows,
    StandingRecord,
    UploadRecord,
)
from giornata.domain.generation.picture import SafetyPolicy
from giornata.domain.jobs.routing import Turns
from giornata.protocol.jobs import JobPart

Before = tuple[int, str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSigningKey:
    """The signing key as it is stored: `clear` is empty where it is `sealed`."""

    clear: str
    sealed: str | None


class Projects(Protocol):
    """Queries for the installation and its tenants."""

    def install(self, *, signing_key: str, sealed_signing_key: str | None = None, at_ms: int) -> bool:
        """Write the installation's only row; False when it is there already."""

    def signing_key(self) -> KeptSigningKey | None:
        """Return the installation's signing key as it is stored; None before `install`."""

    def replace_signing_key(self, *, signing_key: str, sealed_signing_key: str | None) -> None:
        """Replace the signing key. SQLite overwrites the old bytes in the file."""

    def add(self, project: ProjectRecord) -> bool:
        """Insert the project; False when the id is taken."""

    def get(self, project_id: str) -> ProjectRecord | None:
        """Return the project with its budgets and quotas; None when there is none of this id."""

    def there(self, project_ids: Sequence[str]) -> frozenset[str]:
        """Return those of the projects that are not deleted. One statement."""

    def page(self, *, only: str | None, before: Before, limit: int) -> list[ProjectRecord]:
        """Return all projects, or `only` that one."""

    def set_max_pictures(self, project_id: str, max_pictures: int | None) -> bool:
        """Set the project's limit of pictures; False when there is no such project."""

    def set_safety(self, project_id: str, safety: SafetyPolicy) -> bool:
        """Set what becomes of the project's unsafe pictures; False when there is no such project."""


class Keys(Protocol):
    """Queries for keys, by the hash of their secret."""

    def add(self, key: KeyRecord) -> None:
        """Insert a new key, whose id and secret are unused."""

    def by_secret(self, secret_sha256: str) -> KeyRecord | None:
        """Return the key whose secret, or whose secret before its latest rotation, has this hash."""

    def get(self, key_id: str, *, project_id: str | None) -> KeyRecord | None:
        """Return the key; `project_id` None: of any project (the root admin's view)."""

    def page(
        self, *, project_id: str | None, user_id: str | None = None, before: Before, limit: int
    ) -> list[KeyRecord]:
        """Return the keys of one project or of all, and with `user_id` only those of this person."""

    def lock_admins(self, project_id: str) -> list[str]:
        """Return ids of the project's admin keys that end only when they are revoked: no person stands behind them,
        and they do not expire. Nobody else revokes one meanwhile.
        """

    def revoke(self, key_id: str, *, at_ms: int) -> None:
        """Revoke the key. Does nothing to a key that is revoked already."""

    def revoke_of(self, user_id: str, *, project_id: str | None, at_ms: int) -> int:
        """Revoke the keys behind which this person stands, in one project or in all; return their number."""

    def rotate(self, key: KeyRecord) -> bool:
        """Write the key's prefix, secret, and secret of before; False for a key that was revoked meanwhile."""

    def used(self, key_id: str, *, at_ms: int, unless_since_ms: int) -> None:
        """Note the use, unless one was noted at or after `unless_since_ms`."""


class Uploads(Protocol):
    """Blobs, the uploads on their way to become some, and the caches of attempts."""

    def blobs(self, project_id: str, sha256s: Sequence[str]) -> dict[str, BlobRecord]:
        """Return the blobs that the project has and that were not found lost."""

    def touch_blobs(self, project_id: str, sha256s: Sequence[str], *, at_ms: int) -> set[str]:
        """Keep these from the collector for another while; return the sha256s that are there and not lost."""

    def add_blob(self, project_id: str, blob: BlobRecord, *, at_ms: int) -> str:
        """Insert unless the project has these bytes, or had and lost them; return the key under which they stand
        now.
        """

    def standing(self, project_id: str, sha256: str) -> StandingRecord | None:
        """Return where these bytes are said to lie, lost or not."""

    def note_look(self, project_id: str, sha256: str, *, key: str, at_ms: int, lost: bool) -> bool:
        """Write down what was found under `key`; False when the bytes do not lie there any more, or are lost."""

    def note_inspection(self, project_id: str, sha256: str, inspection: dict[str, Any]) -> None:
        """Keep what the inspection of a picture found, at the blob with these bytes."""

    def add(self, uploads: Sequence[UploadRecord]) -> None:
        """Insert new uploads. Does nothing without any."""

    def get(self, upload_id: str, *, project_id: str) -> UploadRecord | None:
        """Return the upload, complete or not; None when the project has none of this id."""

    def complete(self, upload_id: str, *, project_id: str, at_ms: int) -> bool:
        """Complete the upload; False when there is no such upload (any more)."""

    def drop(self, upload_id: str, *, project_id: str) -> bool:
        """Forget an upload that is not complete."""

    def live_attempt_project(self, attempt_id: str) -> str | None:
        """Return the project of an attempt that has not ended, which then cannot end before this transaction does."""

    def cache(self, project_id: str, key: str) -> CacheRecord | None:
        """Return the cache under this key; None as well when its bytes are lost."""

    def caches(self, project_id: str, keys: Collection[str]) -> Mapping[str, CacheRecord]:
        """Return the caches under these keys; those that nobody has made, or whose bytes are lost, are left out."""

    def add_cache(self, project_id: str, key: str, sha256: str, size_bytes: int, *, at_ms: int) -> bool:
        """Insert the cache; False when somebody has committed this key before, and its bytes are not lost."""

    def cache_used(self, project_id: str, key: str, *, at_ms: int) -> None:
        """Note the cache's latest use, in epoch milliseconds. Does nothing when the project has no such cache."""


class Datasets(Protocol):
    """Queries for lists of blobs with captions."""

    def add(self, dataset: DatasetRecord, items: Sequence[ItemRecord]) -> bool:
        """Insert the dataset; False, and nothing changed, when it exists."""

    def get(self, dataset_id: str, *, project_id: str) -> DatasetRecord | None:
        """Return the dataset without its items; None when the project has none of this id."""

    def hold(self, dataset_id: str, *, project_id: str) -> DatasetRecord | None:
        """Return the dataset; nobody deletes it before this transaction ends."""

    def lock(self, dataset_id: str, *, project_id: str) -> bool | None:
        """Return whether the dataset is pinned, None when there is none; nobody else holds it until this transaction
        ends.
        """

    def items(self, dataset_id: str, *, project_id: str) -> list[ItemRecord]:
        """Return the items of the dataset in its order; empty when the project has no such dataset."""

    def page(self, *, project_id: str, before: Before, limit: int, most_bytes: int) -> Rows[DatasetRecord]:
        """Return at most `limit` datasets that were made before `before`, newest first, and none behind the one with
        which the page reaches `most_bytes`.
        """


class JobReads(Protocol):
    """Queries that read jobs and nodes."""

    def get(self, job_id: str, *, project_id: str) -> JobRecord | None:
        """Return the job with its spec and result; None when the project has none of this id."""

    def in_short(self, job_id: str, *, project_id: str) -> JobInShort | None:
        """Return what is told of an order beside its pictures, without reading its spec whole."""

    def exists(self, job_id: str, *, project_id: str) -> bool:
        """Return True when the project has this job. Reads nothing of it."""

    def page(
        self,
        *,
        project_id: str,
        states: Sequence[str],
        labels: Mapping[str, str],
        kind: str | None,
        match: str | None = None,
        search: str | None = None,
        looked_until: Before = None,
        before: Before,
        include: Collection[JobPart],
        limit: int,
        most_bytes: int,
    ) -> Rows[JobRecord]:
        """Return at most `limit` jobs, and none behind the one with which the page reaches `most_bytes`.

        `spec` and `result` are empty, and not read, unless they are in `include`. With `search`, only jobs with this
        text in their name, of which none older than the one at `looked_until` is looked at.
        """

    def last_looked_at(self, *, project_id: str, kind: str | None, before: Before, most: int) -> Before:
        """Return the place of the last of `most` jobs behind `before`, newest first; None when fewer are left."""

    def attempts(self, job_ids: Sequence[str], *, project_id: str, messages: bool = True) -> list[AttemptRecord]:
        """Return the attempts of all these jobs, by job and number; without their messages unless `messages`."""

    def events(self, job_id: str, *, project_id: str, after: int, limit: int, most_bytes: int) -> Rows[EventRecord]:
        """Return at most `limit` events of the job with ids above `after`, oldest first, within `most_bytes`."""

    def newest_events(self, job_id: str, *, project_id: str, types: Sequence[str], limit: int) -> list[EventRecord]:
        """Return the newest events of these types, newest first."""

    def logs(self, job_id: str, *, project_id: str, after: int, limit: int, most_bytes: int) -> Rows[LogRecord]:
        """Return at most `limit` log lines of the job with ids above `after`, oldest first, within `most_bytes`."""

    def steps(self, job_ids: Sequence[str]) -> Mapping[str, int]:
        """Return the step that each of these jobs is at. One statement."""

    def event_heads(self, job_ids: Sequence[str]) -> Mapping[str, int]:
        """Return the id of the last event of each of these jobs that is not deleted; 0 without any."""

    def log_heads(self, job_ids: Sequence[str]) -> Mapping[str, int]:
        """Return the id of the last log line of each of these jobs that is not deleted; 0 without any."""

    def metrics(
        self, job_id: str, *, project_id: str, after_step: int, limit: int, most_bytes: int
    ) -> Rows[MetricRecord]:
        """Return the metrics of at most `limit` steps after `after_step`, by step, within `most_bytes`."""

    def metric_span(self, job_id: str, *, after_step: int) -> tuple[int, int] | None:
        """Return the first and the last step above `after_step` that have metrics; None without any."""

    def curve(self, job_id: str, *, steps: Sequence[int], most_bytes: int) -> Sequence[MetricRecord]:
        """Return the metrics of these steps, ascending; of one that has none those of the next that has.

        The last ones that have `most_bytes` together.
        """

    def checkpoints(
        self,
        job_id: str,
        *,
        project_id: str,
        steps: Collection[int] | None = None,
        below: int | None = None,
        limit: int | None = None,
    ) -> list[CheckpointRecord]:
        """Return the checkpoints that were not rejected, highest step first: of these steps, or below this one."""

    def checkpoint_with(self, sha256: str, *, project_id: str) -> tuple[str, int] | None:
        """Return (job, step) of the earliest checkpoint with these bytes; None where there is none any more."""

    def artifacts(
        self, job_id: str, *, project_id: str, after: str = "", limit: int | None = None
    ) -> list[ArtifactRecord]:
        """Return the job's artifacts whose names come after `after`, sorted by name."""

    def artifact(self, job_id: str, name: str, *, project_id: str) -> ArtifactRecord | None:
        """Return the artifact of the job with this name; None where there is none."""

    def sheets(self, job_id: str, *, project_id: str, limit: int) -> list[ArtifactRecord]:
        """Return the last artifacts by name that are called as sample sheets are, last first."""

    def finished(self, *, project_id: str, kind: str, shape_key: str, limit: int) -> list[FinishedRecord]:
        """Return the project's latest succeeded attempts of this kind with steps of this shape."""

    def ahead(self, *, kind: str, interrupted: bool, priority: int, turn: int, job_id: str) -> int:
        """Return how many queued jobs of the kind, of all projects, go before one that is queued like this.

        Those for one machine are not counted: they take nobody's turn.
        """

    def queue_view(self, job: JobRecord, *, seen_since_ms: int) -> QueueView:
        """Return the job's place in the queue; `ahead` is counted only where a node could do the job."""

    def queue_views(self, new: Sequence[JobRecord], *, seen_since_ms: int) -> Sequence[QueueView]:
        """Return views as `queue_view` does, for new jobs of one project: for any machine, never interrupted, banned
        nowhere.
        """

    def nodes(
        self, *, project_id: str | None, seen_since_ms: int | None, before: Before, limit: int, most_bytes: int
    ) -> Rows[NodeRecord]:
        """Return nodes by first appearance, newest first; `project_id` None: of all projects."""

    def node(self, node_id: str) -> NodeRecord | None:
        """Return the node, of any project; None when there is none of this id."""


class Submission(Protocol):
    """Queries that write new jobs."""

    def remembered(self, project_id: str, key: str, route: str, *, since_ms: int) -> tuple[str, str] | None:
        """Return (request_sha256, job id) of a request with this Idempotency-Key made at or after `since_ms`."""

    def remember(
        self, project_id: str, key: str, route: str, *, request_sha256: str, job_id: str, at_ms: int, since_ms: int
    ) -> bool:
        """Store a request; False when another one holds the key. Waits for one that is just being stored.

        A request of before `since_ms` is forgotten first.
        """

    def turns(self, project_id: str, *, kind: str, priority: int) -> Turns:
        """Return the turns that a new job's turn is worked out from."""

    def hold_project(self, project_id: str) -> None:
        """Wait for other submissions of this project, which would give their jobs the same turn, and make those that
        come later wait, until this transaction ends. Lock a job before its project."""

    def add_each(self, jobs: Sequence[JobRecord]) -> None:
        """Insert new jobs, whose ids are unused."""

    def add_input(self, job: JobRecord, role: str, sha256: str) -> None:
        """Note that the job reads these bytes, which the project has; they are kept as long as the job is known."""

    def add_order_files(self, job_id: str, files: Sequence[OrderFile]) -> None:
        """Note the files of an order. Models are kept until the order has ended, pictures as long as it is known."""

    def hold_models_of(self, job_id: str, others: Sequence[str]) -> None:
        """Let a new job hold the models that any of the other jobs holds, until the new job has ended."""

    def lock(self, job_id: str, *, project_id: str) -> JobRecord | None:
        """Return the job; it cannot change before this transaction ends."""

    def live_retry(self, job_id: str, *, project_id: str) -> str | None:
        """Return the id of a queued or running job that is a retry of this one."""

    def any_retry(self, job_id: str, *, project_id: str) -> str | None:
        """Return the id of the latest job that is a retry of this one, ended or not."""

    def inherit_checkpoints(self, *, source: str, target: str, project_id: str) -> int:
        """Give the target the source's accepted checkpoints (attempt 0); return the highest step, 0 for none."""


class Garbage(Protocol):
    """Queries for unreferenced rows. Every method takes at most `limit` rows and is repeated until it finds none."""

    def take_uploads(self, *, created_before_ms: int, limit: int) -> list[UploadRecord]:
        """Delete the rows of old uploads, completed or not, and return them."""

    def take_blobs(self, *, created_before_ms: int, limit: int) -> list[str]:
        """Delete old blob rows that nothing refers to, and return their keys."""

    def unknown(self, keys: Sequence[str]) -> set[str]:
        """Return those keys that belong to no blob and to no open upload."""

    def forget_order_models(self, *, limit: int) -> int:
        """Let go of the models of orders that have ended; return the number of rows."""

    def forget_models(self, *, used_before_ms: int, limit: int) -> int:
        """Forget models that orders named by a reference, that are not pinned, and that no order named since; return
        their number."""

    def forget_checkpoints(self, *, limit: int) -> int:
        """Let go of the checkpoints that validations read which have ended; return their number."""

    def forget_requests(self, *, created_before_ms: int, limit: int) -> int:
        """Delete idempotency rows from before this instant; return their number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRecord:
    """A secret as stored: sealed."""

    project_id: str
    name: str
    sealed: str = field(repr=False)
    created_at_ms: int
    changed_at_ms: int
    created_by: str | None = None  # who gave it the value that it has; None: not known


class Secrets(Protocol):
    """Queries for sealed values by (project, name)."""

    def put(self, secret: SecretRecord) -> None:
        """Insert, or replace the value, `changed_at_ms` and `created_by` of the one that is there."""

    def get(self, project_id: str, name: str) -> SecretRecord | None:
        """Return the sealed secret; None when the project has none of this name."""

    def of_project(self, project_id: str) -> list[SecretRecord]:
        """Return the project's secrets, sorted by name."""

    def drop(self, project_id: str, name: str) -> bool:
        """Delete the secret; False when there is none."""
