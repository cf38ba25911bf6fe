"""The store's interface for the node's side of the control plane.

Every method runs in the caller's transaction. Instants are epoch milliseconds of the server's clock.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from giornata.control.ports.node_queries.work_rows import (
    ArtifactRow,
    AttemptRow,
    Before,
    Beginning,
    BlobRow,
    CheckpointRow,
    InputRow,
    JobRow,
    NewEvent,
    NodeBeat,
    NodeRow,
    NodeSighting,
    QueuedDemand,
    Taking,
    Wanted,
)
from giornata.domain.fleets.starts import NodeStart
from giornata.domain.jobs.job import JobEvent, JobState
from giornata.protocol.events import EventType


class Nodes(Protocol):
    """Nodes that have ever asked for work."""

    def get(self, node_id: str) -> NodeRow | None:
        """Return the node as it is just now; None when it has never asked for work."""

    def see_each(self, nodes: Sequence[NodeSighting], *, at_ms: int) -> Mapping[str, NodeRow]:
        """Insert or refresh the rows; return their state by id. A row that belongs to another project is left as it
        is.

        No two with one id.
        """

    def has_machine(self, machine_id: str, *, seen_since_ms: int) -> bool:
        """Return True when a node on the machine of exactly this id was heard of since then."""

    def forget(self, node_id: str) -> None:
        """Delete the row of a node that was not let in."""

    def note_checks(self, node_id: str, checks: Mapping[str, Any], *, start: NodeStart) -> None:
        """Keep what the node found out about itself, in place of what it said before, and how far its start is."""

    def beat_each(self, beats: Sequence[NodeBeat], *, at_ms: int) -> frozenset[str]:
        """Note that these nodes live; return the ids of those that are draining."""


class Jobs(Protocol):
    """Queries for jobs and changes of their states."""

    def claimable(self, wanted: Wanted) -> bool:
        """Return True when `take` would find a job. Changes and locks nothing."""

    def head_priority(self, wanted: Wanted) -> int | None:
        """Return the priority of the first job that `take` would find; None when there is none."""

    def take(self, claim: Taking, *, at_ms: int) -> JobRow | None:
        """Pick the first of the queue by `domain.jobs.routing.rank` and set it running, in one statement.

        `attempt_count` of the row that is returned is the new attempt's number.
        """

    def take_each(
        self, claims: Sequence[Taking], *, at_ms: int, rooms: Mapping[str, int] = ...
    ) -> list[JobRow | None]:
        """Take a job for one claim after the other, as `take` does, in fewer statements. Of a project in `rooms` they
        take so many jobs at most.
        """

    def why_nothing(self, wanted: Wanted) -> str:
        """Return why `take` found nothing: `empty-queue`, `no-such-kind`, `no-such-companion`, `banned`, `too-small`,
        `project-at-ceiling` or `for-another` (machine).
        """

    def demand(self) -> list[QueuedDemand]:
        """Return all queued jobs by what they ask of a node: largest groups first, those for anybody before the
        others.

        Cheap however long the queue is: equal jobs are counted from an index; only those that were interrupted, which
        are few and the only ones with bans, and those for one machine are looked at one by one.
        """

    def get(self, job_id: str) -> JobRow | None:
        """Return the job as it is just now; it may change at any moment."""

    def lock(self, job_id: str) -> JobRow | None:
        """Return the job, held until the transaction ends. Lock a job before any row that hangs on it."""

    def lock_of_attempt(self, attempt_id: str) -> JobRow | None:
        """Return the job that the attempt is for, held until the transaction ends."""

    def lock_of_attempts(self, attempt_ids: Sequence[str]) -> Mapping[str, JobRow]:
        """Return the jobs that the attempts are for, by their own ids, held until the transaction ends.

        They are locked in the order of their ids, so that two who want several do not wait for one another.
        """

    def lock_unbegun(self, kind: str, *, name_begins: str) -> Sequence[JobRow]:
        """Return the queued jobs of these names that no node has ever had, held until the transaction ends. Those
        that somebody else holds are left out."""

    def change(self, job: JobRow, event: JobEvent, **columns: Any) -> JobState:
        """Apply the transition table's row, and set more columns; returns the new state.

        Raises IllegalTransition, also when the state is no longer the one in `job`.
        """

    def change_each(
        self, jobs: Sequence[JobRow], event: JobEvent, columns_by_id: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """Change several jobs, as `change` does; the columns, of the same names, by the job's id."""

    def update(self, job_id: str, **columns: Any) -> None:
        """Set columns other than the state."""

    def update_each(self, columns_by_id: Mapping[str, Mapping[str, Any]]) -> None:
        """Set columns of several jobs, as `update` does."""

    def past_deadline(self, *, at_ms: int, limit: int) -> Sequence[str]:
        """Return ids of jobs that are not done at their deadline; oldest deadline first."""


class Attempts(Protocol):
    """Queries for attempts; every write is fenced."""

    def begin_each(self, begun: Sequence[Beginning]) -> None:
        """Insert the attempts, begin their bills, and write their events. No two are of one node.

        Whatever else lives on an attempt's node, lapsed or not, shares the node's price with it from now on: the row
        of the node must be held.
        """

    def get(self, attempt_id: str) -> AttemptRow | None:
        """Return the attempt, ended or not; None when there is none of this id."""

    def get_each(self, attempt_ids: Sequence[str]) -> Mapping[str, AttemptRow]:
        """Return the attempts that exist, by id."""

    def live_of_job(self, job_id: str) -> AttemptRow | None:
        """Return the one attempt of the job that has not ended, lapsed or not."""

    def before_each(self, asked: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], Before]:
        """Return the state before claims by node id and request id, for those with an attempt or a lease alone."""

    def update_live(self, attempt_id: str, **columns: Any) -> AttemptRow | None:
        """Set columns WHERE the attempt has not ended; None when it has."""

    def update_live_each(self, columns_by_id: Mapping[str, Mapping[str, Any]]) -> bool:
        """Set the same columns of each, as `update_live` does; False when any has ended: the transaction must not
        commit.
        """

    def run_out(self, *, at_ms: int, limit: int) -> Sequence[str]:
        """Return ids of attempts whose lease ended before `at_ms` and that have neither ended nor lapsed; oldest
        first.
        """

    def ahead(self, *, renewed_after_ms: int, ends_after_ms: int, limit: int) -> Sequence[str]:
        """Return ids of attempts that neither ended nor lapsed, renewed later and with a later lease than this."""

    def failed_since_progress(self, job_id: str) -> Sequence[AttemptRow]:
        """Return the job's ended attempts since the latest that committed a step, that one included, in order.

        Attempts that a shared fault ended are left out.
        """

    def crashed(self, job_id: str) -> Sequence[AttemptRow]:
        """Return the job's attempts that ended as crashed, by a fault that was not shared."""

    def history(self, *, since_ms: int) -> tuple[int, int]:
        """Return (milliseconds run, interruptions) of the attempts that ended since; the latest few hundred."""


class Ledger(Protocol):
    """The costs of attempts: one row for each interval in which an attempt is alive."""

    def open_each(self, begun: Sequence[tuple[JobRow, AttemptRow]], *, at_ms: int) -> None:
        """Begin an interval of each of these attempts, whose jobs stand beside them."""

    def extend_each(self, attempt_ids: Sequence[str], *, to_ms: int) -> None:
        """Bill their latest interval up to `to_ms`; never less than it has been billed already."""


class Events(Protocol):
    """Queries for a job's history. Written in the transaction of what happened."""

    def add_each(self, events: Sequence[NewEvent]) -> None:
        """Insert the events in this order. Does nothing without any."""

    def add(  # noqa: PLR0917
        self,
        job_id: str,
        project_id: str,
        event_type: EventType,
        attempt_number: int | None,
        data: Mapping[str, Any],
        at_ms: int,
    ) -> None:
        """Insert one event of the job; `attempt_number` is None when no attempt caused it."""

    def add_notice(
        self, job: JobRow, attempt: AttemptRow, data: Mapping[str, Any], *, notice_id: str | None, at_ms: int
    ) -> None:
        """Add the attempt's notice, unless it has said something under this id before."""

    def count_notices(self, job_id: str, *, up_to: int) -> int:
        """Count the job's notices; counting stops at `up_to`."""

    def has_notice(self, job_id: str, notice_id: str) -> bool:
        """Return True when any attempt of the job has said something under this id."""


class Checkpoints(Protocol):
    """Committed checkpoints of a job."""

    def usable(self, job_id: str) -> Sequence[CheckpointRow]:
        """Return the checkpoints that nobody rejected, highest step first."""

    def all(self, job_id: str) -> Sequence[CheckpointRow]:
        """Return all checkpoints, the rejected ones too, highest step first."""

    def get(self, job_id: str, step: int) -> CheckpointRow | None:
        """Return the checkpoint of this step, rejected or not; None when none was committed."""

    def put(self, job: JobRow, *, step: int, sha256: str, size_bytes: int, attempt_number: int, at_ms: int) -> None:
        """Insert the row, or replace the one of that step, rejected or doubted as it may be."""

    def reject(self, job_id: str, step: int) -> None:
        """Mark the checkpoint of this step as unusable: no attempt resumes from it any more."""

    def doubt(self, job_id: str, step: int, *, attempt_number: int) -> None:
        """Note that this attempt goes on without it."""

    def delete(self, job_id: str, steps: Sequence[int]) -> None:
        """Forget these; their bytes become garbage unless something else names them."""


class Artifacts(Protocol):
    """Committed results of a job."""

    def of_job(self, job_id: str) -> Sequence[ArtifactRow]:
        """Return the artifacts of the job, sorted by name."""

    def of_jobs(self, job_ids: Sequence[str]) -> Mapping[str, Sequence[ArtifactRow]]:
        """Return the artifacts of several jobs, by job; a job without any is left out."""

    def put(self, job: JobRow, artifact: ArtifactRow, *, media_type: str, at_ms: int) -> None:
        """Insert the row, or replace the one of that name."""

    def delete(self, job_id: str, names: Sequence[str]) -> None:
        """Delete the rows of these artifacts; their bytes become garbage unless something else names them."""


class Inputs(Protocol):
    """Queries for the inputs of a job."""

    def of_dataset(self, project_id: str, dataset_id: str) -> Sequence[InputRow]:
        """Return the files of the dataset in its order, with their blobs; empty without such a dataset."""

    def of_job(self, project_id: str, job_id: str) -> Mapping[str, BlobRow]:
        """Return the files that the job reads besides its datasets, by their role."""


class Reports(Protocol):
    """Log lines and metrics that nodes report."""

    def count_lines(self, job_id: str, *, up_to: int) -> int:
        """Count the lines of the job's log; counting stops at `up_to`."""

    def add_lines(self, attempt: AttemptRow, *, first: int, lines: Sequence[str], at_ms: int) -> None:
        """Add the lines, numbered from `first`; numbers that are there already are left alone."""

    def put_metrics(self, points: Sequence[tuple[AttemptRow, int, Mapping[str, float]]], *, at_ms: int) -> None:
        """Insert metrics by attempt and step; those of a job's later attempt win."""

    def count_metrics(self, job_id: str, *, from_step: int, up_to: int) -> int:
        """Count the steps from this one on that have metrics; counting stops at `up_to`."""

    def metric_names(self, job_id: str, *, points: int) -> set[str]:
        """Return the names of the latest so many points."""
