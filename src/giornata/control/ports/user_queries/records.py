"""Rows that the user's verbs read from the store, as plain values.

Instants are epoch milliseconds of the server's clock; money is integer micro-dollars.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from giornata.domain.billing.quotas import Quotas
from giornata.domain.generation.picture import SafetyPolicy

_R = TypeVar("_R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows(Generic[_R]):
    """A page of rows. It is bounded in rows and in bytes; `more` says that there are rows behind it."""

    items: Sequence[_R]
    more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectRecord(Quotas):
    """A project: a tenant with its budgets and quotas."""

    id: str
    name: str
    created_at_ms: int
    budget_micro_usd: int | None = None
    budget_warned_at_ms: int | None = None
    monthly_budget_micro_usd: int | None = None
    monthly_budget_warned_at_ms: int | None = None
    max_pictures: int | None = None
    safety: str = SafetyPolicy.OFF
    created_by: str | None = None  # the person or the key; None: the installation, or not known


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """A key as stored: the sha256 of its secret, never the secret.

    `scope` is the text that `stored_scopes` makes. `user_id` is the person behind the key, whose reach is its bound.
    The secret before the latest rotation is good until `previous_until_ms`. A `login` key is what `giornata login`
    got: it makes and ends keys of the person, as a session does.
    """

    id: str
    project_id: str
    scope: str
    name: str
    prefix: str
    secret_sha256: str
    created_at_ms: int
    revoked_at_ms: int | None
    last_used_at_ms: int | None
    fleet: str | None = None
    max_price_micro_usd_per_hour: int | None = None
    created_by: str | None = None
    user_id: str | None = None
    expires_at_ms: int | None = None
    previous_sha256: str | None = None
    previous_until_ms: int | None = None
    login: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobRecord:
    """Verified bytes of a project. `inspection` is what the picture inspector found, None before it was asked."""

    sha256: str
    size_bytes: int
    key: str
    inspection: dict[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingRecord:
    """The place of a blob's bytes, and what the server found when it last looked because somebody doubted them."""

    size_bytes: int
    key: str
    looked_at_ms: int | None
    lost_at_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadRecord:
    """Bytes that somebody was given a place for. `attempt_id` is None for a user's."""

    id: str
    project_id: str
    attempt_id: str | None
    sha256: str
    size_bytes: int
    key: str
    multipart_id: str | None
    created_at_ms: int
    completed_at_ms: int | None = None
    created_by: str | None = None  # the person or the key; None: an attempt, or not known


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetRecord:
    """A dataset without its items."""

    id: str
    project_id: str
    labels: dict[str, str]
    notes: list[str]
    picture_count: int
    size_bytes: int
    created_at_ms: int
    created_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemRecord:
    """One picture of a dataset."""

    sha256: str
    name: str
    caption: str | None
    repeats: int = 1
    resolution: int | None = None


MODEL_ROLE = "model:"
"""The beginning of the role of an order's file that is held only until the order has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderFile:
    """A file that an order holds, and the project whose bytes it is: the order's own, or the operator's."""

    role: str
    project_id: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A job's row as users see it. The defaults are those of a job that was just submitted."""

    id: str
    project_id: str
    kind: str
    name: str
    state: str
    spec: dict[str, Any]
    model_key: str
    joint_key: str | None = None
    shape_key: str = ""
    priority: int
    interrupted: bool = False
    labels: dict[str, str] = field(default_factory=dict)
    total_steps: int | None = None
    retry_of: str | None = None
    attempt_id: str | None = None
    step: int = 0
    committed_step: int = 0
    phase: str = ""
    error: str | None = None
    faults: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)
    created_at_ms: int
    started_at_ms: int | None = None
    ended_at_ms: int | None = None
    deadline_at_ms: int | None = None
    budget_micro_usd: int | None = None
    reserved_micro_usd: int = 0
    paused_by: str | None = None  # whose budget is used up
    min_vram_bytes: int = 0
    only_machine_id: str | None = None
    turn: int = 0  # given when it is queued
    created_by: str | None = None  # the person or the key; None: the platform, or not known
    billed_to: str | None = None  # the project that pays for its attempts; None: its own
    suspect: bool = False  # an audit refuted a machine that made part of it
    parent_id: str | None = None  # the sweep that it belongs to


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInShort:
    """A job without its spec. `image_format` is that of an order of pictures, and None for other jobs.

    `retried_cells` is the label of an order that draws cells of a grid again; only the gallery's queries read it.
    """

    id: str
    name: str
    state: str
    image_format: str | None
    retried_cells: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """An attempt's row with what is billed for it: its share of the node's price while it shared the node."""

    id: str
    job_id: str
    number: int
    node_id: str
    machine_id: str
    node_name: str
    started_at_ms: int
    first_step_at_ms: int | None
    renewed_at_ms: int
    lease_expires_at_ms: int
    ended_at_ms: int | None
    lapsed: bool
    reason: str | None
    message: str | None
    start_step: int
    last_step: int
    committed_step: int
    phase: str
    billed_ms: int
    amount_micro_usd: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRecord:
    """A succeeded attempt, as far as an estimate asks. The price is its share, if it shared the node."""

    started_at_ms: int
    first_step_at_ms: int | None
    ended_at_ms: int
    start_step: int
    last_step: int
    price_micro_usd_per_hour: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """Something that happened to a job."""

    id: int
    job_id: str
    type: str
    attempt_number: int | None
    data: dict[str, Any]
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecord:
    """A line of a job's log."""

    id: int
    attempt_number: int
    line: str
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRecord:
    """The metrics of one step."""

    step: int
    attempt_number: int
    values: dict[str, float]
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord:
    """A committed checkpoint with the key of its bytes."""

    step: int
    attempt_number: int
    sha256: str
    size_bytes: int
    created_at_ms: int
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactRecord:
    """A committed result with the key of its bytes."""

    name: str
    sha256: str
    size_bytes: int
    media_type: str
    created_at_ms: int
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """A node with the jobs that it holds and the strikes against its machine."""

    id: str
    project_id: str
    machine_id: str
    name: str
    fleet: str
    pid: int | None
    engine_pid: int | None
    device: str
    vram_bytes: int | None
    price_micro_usd_per_hour: int
    held_models: list[str]
    draining: bool
    first_seen_at_ms: int
    last_seen_at_ms: int
    checks: Mapping[str, Any]  # what it found out about itself; empty: nothing
    instance_id: str | None
    places: int
    replaced: bool  # a newer process of the same name on the same machine took its place
    job_ids: tuple[str, ...]
    strikes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRecord:
    """A file that an earlier job of the project made under a key. `key` here is its place in storage."""

    sha256: str
    size_bytes: int
    key: str
    used_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """The jobs and nodes that decide when a queued job gets a node.

    `ahead` counts the queued jobs of its kind, of all projects, that go first; `live_nodes` the nodes heard of
    lately that serve its project and kind, are not leaving, and are on the one machine that it is for, if it is for
    one; `large_nodes` those of them with enough GPU memory, as far as is known; `eligible_nodes` those of these
    that are neither banned nor quarantined. `largest_bytes` is the most GPU memory that a live node is known to have.
    `running` counts the project's running jobs where it may run `max_running` at a time; None: as many as it likes.
    """

    ahead: int
    live_nodes: int
    large_nodes: int
    largest_bytes: int | None
    eligible_nodes: int
    running: int = 0
    max_running: int | None = None
