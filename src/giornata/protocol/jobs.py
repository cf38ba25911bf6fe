"""Jobs as their owners see them."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from giornata.domain.jobs.job import JobState
from giornata.domain.jobs.reasons import Blame, Reason
from giornata.protocol.events import EventType
from giornata.protocol.model import Label, Message, Reply, Sha256
from giornata.protocol.uploads import SignedUrl

MicroUsd = Annotated[int, Field(ge=1, le=10**15)]
# A least and a greatest number. In the document they are an array of two: many clients do not read `prefixItems`.
FloatRange = Annotated[
    tuple[float, float], WithJsonSchema({"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2})
]
IntegerRange = Annotated[
    tuple[int, int], WithJsonSchema({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2})
]
JobDeadline = Annotated[
    int | None,
    Field(
        ge=1,
        le=30 * 86_400,
        description="Seconds from now after which a job that has not ended expires. Default: never.",
    ),
]
MinVram = Annotated[
    int | None,
    Field(
        ge=0,
        lt=2**50,
        description="GPU memory that a node needs at least, in bytes; raised when it turns out to be more.",
    ),
]


class JobPart(StrEnum):
    """The parts of a job that lists of jobs omit unless the request includes them."""

    SPEC = "spec"
    RESULT = "result"


class SubmitJob(Message):
    """`POST /v1/jobs`. `spec` is checked against the kind, whole, with every fault listed."""

    kind: str = Field("train", pattern=r"^[a-z][a-z0-9-]{0,31}$")
    spec: dict[str, Any]
    name: Label | None = Field(None, description="Name of the job for people. Default: its id.")
    priority: int = Field(0, ge=-100, le=100, description="Priority. Jobs with a higher number start first.")
    labels: dict[str, str] = Field(default_factory=dict, max_length=32)
    deadline_s: JobDeadline = None
    budget_micro_usd: MicroUsd | None = Field(
        None,
        description="Maximum cost in micro-dollars: 1 USD is 1000000. The job is paused when it has cost this. "
        "Default: no maximum.",
    )
    min_vram_bytes: MinVram = None


class ContinueJob(Message):
    """`POST /v1/jobs/{id}/continue`. `spec` holds what is to be other than in the old job; so do the rest."""

    spec: dict[str, Any] = Field(default_factory=dict)
    name: Label | None = Field(None, description="Name of the job for people. Default: the old job's.")
    priority: int | None = Field(None, ge=-100, le=100, description="Priority. Default: the old job's.")
    labels: dict[str, str] = Field(default_factory=dict, max_length=31)
    deadline_s: JobDeadline = None
    budget_micro_usd: MicroUsd | None = Field(
        None, description="Maximum cost in micro-dollars. Default: the old job's."
    )
    min_vram_bytes: int | None = Field(
        None,
        ge=0,
        lt=2**50,
        description="Minimum GPU memory of a node in bytes. Default: the old job's.",
    )


class ChangeJob(Message):
    """`PATCH /v1/jobs/{id}`. Raising the budget of a paused job puts it into the queue again."""

    budget_micro_usd: MicroUsd | None = Field(description="Maximum cost of the job in all; null: without a limit.")


class JobUrls(Reply):
    """The URLs of a job's parts; paths relative to the server."""

    self: str
    cancel: str
    retry: str
    events: str
    logs: str
    metrics: str
    checkpoints: str
    artifacts: str


class Attempt(Reply):
    """One node's try at the job. `number` is the fencing token."""

    id: str
    number: int
    node_id: str
    machine_id: str
    node_name: str
    started_at: datetime
    first_step_at: datetime | None = None
    ended_at: datetime | None = None
    reason: Reason | None = None
    blame: Blame | None = None
    message: str | None = None
    lease_expires_at: datetime
    lapsed: bool = False
    start_step: int = 0
    last_step: int = 0
    committed_step: int = 0
    phase: str = ""
    billed_s: float = 0.0
    cost_micro_usd: int = 0


class FaultReply(Reply):
    """One thing that is wrong."""

    where: str
    message: str
    hint: str = ""


class PictureCounts(Reply):
    """Numbers of the pictures of an order in each state. A blocked picture is among those that succeeded."""

    queued: int = 0
    leased: int = 0
    paused: int = 0
    succeeded: int = 0
    failed: int = 0
    canceled: int = 0


class PicturePace(Reply):
    """Pictures of an order that took a node so many seconds each, to three digits."""

    node_s: float
    pictures: int


class Job(Reply):
    """A job, whole. `step` is the last one reported; `committed_step` the last one that is safe."""

    id: str
    project_id: str
    kind: str
    name: str
    state: JobState
    spec: dict[str, Any]
    priority: int
    labels: dict[str, str]
    created_at: datetime
    created_by: str | None = Field(
        None, description="The person or the key that made it; null: the platform, or not known."
    )
    started_at: datetime | None = None
    ended_at: datetime | None = None
    deadline_at: datetime | None = None
    min_vram_bytes: int = Field(0, description="Minimum GPU memory of a node in bytes. 0: not known.")
    recovering: bool = Field(False, description="true: the job is queued again after an interruption.")
    waiting_because: str | None = Field(None, description="Reason why no node has the job, if it is known.")
    next_try_at: datetime | None = Field(
        None, description="Instant of the next try, if no node may take the job now. A new machine takes it before."
    )
    phase: str = ""
    step: int = 0
    total_steps: int | None = None
    committed_step: int = 0
    interruptions: int = 0
    useful_s: float = 0.0
    lost_s: float = 0.0
    cost_micro_usd: int = 0
    cost_usd: float = 0.0
    imported_cost_micro_usd: int | None = Field(
        None,
        description="Of an imported job: cost in the installation that it came from, where its attempts were made "
        "and billed. `cost_micro_usd` and budgets here leave it out.",
    )
    cost_per_step_usd: float | None = Field(
        None, description="Cost in US dollars per step, counting steps that were made again."
    )
    cost_per_useful_step_usd: float | None = Field(
        None, description="Cost in US dollars per step that is safe in a checkpoint or a result."
    )
    budget_micro_usd: int | None = Field(
        None, description="Budget of the job in micro-dollars. The job is paused when it has cost this."
    )
    error: str | None = None
    faults: tuple[FaultReply, ...] = ()
    result: dict[str, Any] = Field(default_factory=dict)
    pictures: PictureCounts | None = Field(
        None, description="Number of an order's pictures in each state; left out of lists."
    )
    picture_error: str | None = Field(
        None, description="Why the first picture of an order failed, if any has; left out of lists."
    )
    picture_paces: tuple[PicturePace, ...] = Field(
        (),
        description="Seconds of a node for each drawn picture of an order that has ended, with loading of models. A "
        "lease's time is divided by its pictures. Left out of lists.",
    )
    retry_of: str | None = None
    suspect: bool = Field(
        False, description="An audit contradicts a machine that made part of the result. A retry costs nothing."
    )
    parent_id: str | None = Field(None, description="Id of the sweep that the job belongs to.")
    attempts: tuple[Attempt, ...] = ()
    urls: JobUrls


class JobPage(Reply):
    """`GET /v1/jobs`; newest first. `next` is an opaque cursor. A page may end before its `limit`.

    Attempts are left out of lists. `spec` and `result` are empty objects unless `include` names them.
    """

    items: tuple[Job, ...]
    next: str | None = None


class Estimate(Reply):
    """`POST /v1/jobs:estimate`: what submitting would do, without doing it. None: not known yet."""

    spec: dict[str, Any]
    total_steps: int | None
    pictures: int | None = Field(None, description="Number of pictures of an order.")
    pixel_steps: int | None = Field(None, description="Work of an order: pixels times denoising steps.")
    queue_position: int
    step_s: float | None = Field(None, description="Median seconds per step of comparable finished jobs.")
    run_s: float | None = None
    cost_micro_usd: int | None = None
    step_s_range: FloatRange | None = Field(
        None,
        description="Least and greatest step_s by published figures, while the project has no job like this one.",
    )
    run_s_range: FloatRange | None = Field(
        None, description="Least and greatest run_s by the same figures, without the start."
    )
    cost_micro_usd_range: IntegerRange | None = Field(
        None, description="Least and greatest cost_micro_usd by the same figures, without the start."
    )
    basis: str = Field(description="Basis of the estimate, in words.")
    expected_start_at: datetime | None = Field(None, description="Expected start if the fleet stays as it is.")
    expected_end_at: datetime | None = None
    expectation: str = Field("", description="Basis of the two instants, or why they are not known, in words.")


class Event(Reply):
    """Something that happened to a job. `id` grows; pass it as Last-Event-ID to go on from there."""

    id: int
    job_id: str
    type: str = Field(json_schema_extra={"enum": [str(each) for each in EventType]})
    at: datetime
    attempt: int | None = None
    data: dict[str, Any] = Field(default_factory=dict)


class EventPage(Reply):
    """`GET /v1/jobs/{id}/events`; oldest first. Go on with `after=<last id>`."""

    items: tuple[Event, ...]
    next: str | None = None


class LogLine(Reply):
    """`id` grows along the job."""

    id: int
    attempt: int
    at: datetime
    line: str


class LogPage(Reply):
    """The reply of `GET /v1/jobs/{id}/logs`: a page of log lines, oldest first."""

    items: tuple[LogLine, ...]
    next: str | None = None


class MetricPoint(Reply):
    """The metrics of one step; a step that was done twice shows its later values."""

    step: int
    attempt: int
    at: datetime
    values: dict[str, float]


class MetricPage(Reply):
    """The reply of `GET /v1/jobs/{id}/metrics`: a page of metrics by ascending steps."""

    items: tuple[MetricPoint, ...]
    next: str | None = None
    every: int = Field(1, description="With `points`: about every how-manyth step has a point.")


class Checkpoint(Reply):
    """Committed, verified, immutable. `request` fetches it."""

    step: int
    attempt: int
    sha256: Sha256
    size_bytes: int
    created_at: datetime
    request: SignedUrl


class CheckpointPage(Reply):
    """`GET /v1/jobs/{id}/checkpoints`; highest step first. `next` is the last step when there are more."""

    items: tuple[Checkpoint, ...]
    next: str | None = None


class Artifact(Reply):
    """A result. `request` fetches it."""

    name: str
    sha256: Sha256
    size_bytes: int
    media_type: str
    created_at: datetime
    request: SignedUrl


class ArtifactPage(Reply):
    """`GET /v1/jobs/{id}/artifacts`: the job's artifacts by name. `next` is the last name when there are more."""

    items: tuple[Artifact, ...]
    next: str | None = None
