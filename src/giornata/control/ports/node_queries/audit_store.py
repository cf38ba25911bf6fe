"""Queries for replay audits (`tx.audits`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from giornata.control.ports.node_queries.work_rows import CheckpointRow
from giornata.domain.jobs.audits import AuditState


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRun:
    """A machine that repeated the stretch, or is to. `job_id` is the job of kind `audit`.

    `outcome` is empty while it is not known; `same`, `differs`, `other_conditions` or `failed`.
    """

    job_id: str
    machine_id: str = ""
    fleet: str = ""
    outcome: str = ""
    sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayAuditRow:
    """An audit of the stretch of a job that ends with `to_step`, as the attempt `attempt_id` committed it."""

    id: str
    project_id: str
    job_id: str
    attempt_id: str
    attempt_number: int
    machine_id: str
    fleet: str
    device: str
    versions: Mapping[str, str]
    from_step: int
    to_step: int
    claimed_sha256: str
    sha256: str | None  # the same while its bytes are kept
    state: AuditState
    message: str
    runs: tuple[AuditRun, ...]
    guilty_machine_id: str | None
    created_at_ms: int
    decided_at_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConditions:
    """The conditions under which a node computes, as far as the server knows them."""

    machine_id: str
    fleet: str
    device: str
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCommit:
    """A checkpoint as the job's history tells of it."""

    step: int
    sha256: str
    attempt_number: int | None
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaintedJob:
    """A job with checkpoints of a machine that an audit refuted, and the attempts of this machine."""

    job_id: str
    attempt_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReader:
    """A job that reads a file, and the part that the file plays."""

    job_id: str
    project_id: str
    role: str
    sha256: str


class Audits(Protocol):
    """Replay audits, and the jobs that carry them out."""

    def conditions(self, node_id: str) -> NodeConditions | None:
        """Return the conditions of the node; None when it is not known any more."""

    def idle_nodes(self, *, seen_since_ms: int) -> Sequence[NodeConditions]:
        """Return the operator's connected nodes that take audits and have no attempt; by machine."""

    def sound(self, machine_id: str) -> tuple[int, int | None]:
        """Return (number of confirmed audits of the machine since the latest that refuted it, when the stretch of the
        latest confirmed one of all was committed).
        """

    def was_refuted(self, machine_id: str) -> bool:
        """Return True when an audit has ever found the machine alone with its result."""

    def refutations(self) -> tuple[int, int]:
        """Return how many audits found a machine guilty, and when the latest did, in epoch milliseconds; 0: none."""

    def add(self, audit: ReplayAuditRow) -> None:
        """Insert a new audit, whose id is unused."""

    def open_ids(self, *, limit: int) -> Sequence[str]:
        """Return the ids of audits that are not decided, oldest first."""

    def get(self, audit_id: str) -> ReplayAuditRow | None:
        """Return the audit; None when there is none of this id."""

    def lock(self, audit_id: str) -> ReplayAuditRow | None:
        """Return the audit, held until the transaction ends."""

    def put(self, audit: ReplayAuditRow) -> None:
        """Write what may change: held bytes, state, message, runs, the guilty machine, and when it was decided."""

    def of_job(self, job_id: str, *, latest: int | None = None) -> Sequence[ReplayAuditRow]:
        """Return the job's audits by step: all of them, or those of the latest steps."""

    def commits(self, job_id: str, *, limit: int) -> Sequence[CheckpointCommit]:
        """Return the checkpoints that the job's history tells of, oldest first."""

    def pin(self, job_id: str, machine_id: str) -> bool:
        """Let only this machine take the queued job; return False when it is queued no more."""

    def checkpoint(self, audit: ReplayAuditRow) -> CheckpointRow | None:
        """Return the audited checkpoint with where its bytes are; None when they are not kept."""

    def losses(self, job_id: str, *, attempt_number: int, from_step: int, to_step: int) -> Mapping[int, float]:
        """Return the losses that this attempt reported of the steps after `from_step`, up to `to_step`."""

    def release_earlier(self, job_id: str) -> None:
        """Keep the bytes of one decided audit of this job: the one whose checkpoint is the latest."""

    def release_old(self, *, ended_before_ms: int) -> int:
        """Keep the bytes of no audit whose job ended before; return of how many."""

    def tainted(self, machine_id: str, *, since_ms: int) -> Sequence[TaintedJob]:
        """Return the training jobs of which attempts on this machine committed checkpoints, by id. Attempts that
        ended before are left out.
        """

    def retries(self, job_id: str, *, after_step: int) -> Sequence[str]:
        """Return the retries of a training job that go on from a checkpoint after this step, or are to; by id."""

    def readers(self, project_id: str, sha256s: Sequence[str], *, limit: int) -> Sequence[FileReader]:
        """Return jobs that read one of these files of the project, newest first. Audits and validations, which belong
        to a training job, are left out.
        """

    def others(self, attempt_id: str, *, within_ms: int, until_ms: int) -> int:
        """Return how many other attempts the attempt's node had before `until_ms` that had not ended `within_ms`
        before this one began.
        """

    def give_up(self, job_id: str, *, message: str, at_ms: int) -> frozenset[str]:
        """Decide the open audits of a job that is deleted without a verdict, and let go of all bytes that its audits
        keep; return their hashes.
        """

    def bill(self, attempt_ids: Sequence[str], project_id: str) -> None:
        """Let this project pay for the attempts, from their beginning."""
