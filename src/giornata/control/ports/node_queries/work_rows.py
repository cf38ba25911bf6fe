"""Values that pass between the node's side of the control plane and the store: rows and search terms.

Instants are epoch milliseconds of the server's clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from giornata.domain.jobs.attempt import lease_expires_at_ms
from giornata.domain.jobs.job import JobState
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.events import EventType
from giornata.protocol.node.work import NodeInfo, Order

INHERITED = 0
"""The attempt number of checkpoints that a job has from another one. Attempts count from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """A job, as far as those who work on it need to know."""

    id: str
    project_id: str
    kind: str
    name: str
    state: JobState
    spec: Mapping[str, Any]
    model_key: str
    joint_key: str | None
    min_vram_bytes: int
    attempt_count: int
    attempt_id: str | None
    fruitless: int
    step: int
    committed_step: int
    deadline_at_ms: int | None
    budget_micro_usd: int | None
    budget_warned_at_ms: int | None
    created_at_ms: int
    started_at_ms: int | None  # its first attempt
    billed_to: str | None = None  # the project that pays for its attempts; None: its own
    parent_id: str | None = None  # the sweep that it belongs to
    project_budget_micro_usd: int | None = None  # of a job that was locked; a claim does not ask for it
    project_monthly_budget_micro_usd: int | None = None  # likewise
    sweep_budget_micro_usd: int | None = None  # likewise; of the sweep that it belongs to


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    """One node's try at a job. Ended when `ended_at_ms` is set; `order` is what the operator wants of it."""

    id: str
    job_id: str
    number: int
    node_id: str
    machine_id: str
    node_name: str
    price_micro_usd_per_hour: int
    started_at_ms: int
    first_step_at_ms: int | None
    renewed_at_ms: int
    lease_expires_at_ms: int
    ended_at_ms: int | None
    lapsed: bool
    reason: Reason | None
    shared_fault: bool
    start_step: int
    last_step: int
    committed_step: int
    order: str
    order_reason: str | None = None  # how it is to end when it obeys; None: as the node says
    ordered_at_ms: int | None = None  # when its node was first told
    first_step: int | None = None  # how far it was at `first_step_at_ms`
    stepped_to: int | None = None  # its latest step that a beat or metrics told of, which its end may be beyond
    stepped_at_ms: int | None = None
    pictures: int = 0  # of its lease, and `job_id` is the order of the first of them; 0: an attempt at a job

    @classmethod
    def begun(
        cls,
        attempt_id: str,
        node: NodeInfo,
        *,
        job_id: str,
        number: int,
        step: int,
        price_micro_usd_per_hour: int,
        lease_s: float,
        at_ms: int,
        pictures: int = 0,
    ) -> Self:
        """Return an attempt that a node begins at `at_ms`, from the committed `step`."""
        return cls(
            id=attempt_id,
            job_id=job_id,
            number=number,
            node_id=node.node_id,
            machine_id=node.machine_id,
            node_name=node.name,
            price_micro_usd_per_hour=price_micro_usd_per_hour,
            started_at_ms=at_ms,
            first_step_at_ms=None,
            renewed_at_ms=at_ms,
            lease_expires_at_ms=lease_expires_at_ms(now_ms=at_ms, lease_s=lease_s),
            ended_at_ms=None,
            lapsed=False,
            reason=None,
            shared_fault=False,
            start_step=step,
            last_step=step,
            committed_step=step,
            order=Order.CONTINUE,
            pictures=pictures,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEvent:
    """A line of a job's history."""

    job_id: str
    project_id: str
    type: EventType
    attempt_number: int | None
    data: Mapping[str, Any]
    at_ms: int


class Earlier(NamedTuple):
    """The attempt that an earlier claim with the same request id made, ended or not."""

    attempt_id: str
    job_id: str
    pictures: int = 0


class Before(NamedTuple):
    """The state before a claim: the attempt that its request id has made, and the number of the node's leases.

    Attempts that lapsed hold no lease.
    """

    earlier: Earlier | None
    leases: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """An attempt that a claim makes, the request that it was made for, and the event that tells of it.

    `billed_to` is the project that pays for it; None: the one whose job it is.
    """

    attempt: AttemptRow
    request_id: str
    event: NewEvent
    billed_to: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSighting:
    """A node's description of itself when it asks for work."""

    id: str
    project_id: str
    machine_id: str
    name: str
    fleet: str
    instance_id: str | None
    places: int
    pid: int | None
    engine_pid: int | None
    device: str
    vram_bytes: int | None
    price_micro_usd_per_hour: int
    kinds: tuple[str, ...]
    held_models: tuple[str, ...]
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBeat:
    """A node's description of itself while it works."""

    id: str
    held_models: tuple[str, ...]
    engine_pid: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """A node's row, as far as the claim needs it.

    For a node that was just seen, the row has the price at which its instance, or one more of its fleet, was listed
    last; None when neither ever was.
    """

    id: str
    project_id: str
    draining: bool
    vram_bytes: int | None
    first_seen_at_ms: int
    last_seen_at_ms: int
    listed_price_micro_usd_per_hour: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The conditions of jobs that may be handed out: one predicate for looking and for taking.

    `project_id` None means every project's. `vram_bytes` None: nobody knows, and the node is let try; should it be
    too small, the job is banned from its machine. With a `joint_key` it is a job that may share a batch with those of
    this key, otherwise any. The projects `passed_over` run as many jobs as they may.
    """

    kinds: tuple[str, ...]
    held_models: tuple[str, ...]
    machine_id: str
    project_id: str | None
    vram_bytes: int | None = None
    joint_key: str | None = None
    passed_over: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedDemand:
    """A group of queued jobs that are alike in what they ask of a node; `count` of them.

    A node may take them when it serves the project and the kind, its GPU memory is at least `min_vram_bytes` or not
    known, its machine is not among `banned_machines`, and is `only_machine_id` where that is set.
    """

    kind: str
    min_vram_bytes: int
    project_id: str
    count: int
    banned_machines: frozenset[str] = frozenset()
    only_machine_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Taking:
    """A claim for a job: what it may be, and the id that the attempt will have."""

    wanted: Wanted
    attempt_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobRow:
    """Verified bytes, and where they lie."""

    sha256: str
    size_bytes: int
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRow:
    """A picture of a dataset, in the dataset's order."""

    name: str
    caption: str | None
    blob: BlobRow
    repeats: int = 1
    resolution: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRow:
    """A committed checkpoint. `blob` says where its bytes are.

    `doubted_by` is the number of the latest attempt that could not fetch it while the server found it good. One that
    is `pinned` stays when later ones are in.
    """

    step: int
    attempt_number: int
    rejected: bool
    blob: BlobRow
    doubted_by: int | None = None
    pinned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactRow:
    """A committed result of a job."""

    name: str
    attempt_id: str
    sha256: str
    size_bytes: int
