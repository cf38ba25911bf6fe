"""The node's side: claim, heartbeat, upload, commit, end. Every write after the claim carries the attempt's token."""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, StringConstraints, field_validator

from giornata.domain.generation.picture import MOST_PICTURES
from giornata.domain.jobs.job import JobState
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.model import (
    ArtifactName,
    Count,
    Label,
    MediaType,
    Message,
    ObjectSize,
    ProcessId,
    Reply,
    Sha256,
    UploadId,
)
from giornata.protocol.node.held_models import MOST_DAMAGED, HeldModels, PrefetchHint
from giornata.protocol.node.pictures import LeaseFile, PictureLease
from giornata.protocol.node.pipe import FaultLine
from giornata.protocol.project.secrets import Confidential
from giornata.protocol.uploads import Download

MAX_WAIT_S = 30
ModelKey = Annotated[str, StringConstraints(max_length=2048)]


class NodeInfo(Message):
    """The node that makes the claim. The agent draws `node_id` at its start; `machine_id` outlives the process."""

    node_id: str = Field(pattern=r"^node_[0-9a-z]{8,40}$")
    machine_id: str = Field(pattern=r"^[A-Za-z0-9._:-]{1,128}$")
    name: Label
    fleet: Label = "local"
    instance_id: str | None = Field(
        None, pattern=r"^[A-Za-z0-9._:/-]{1,128}$", description="Provider's id of the container or process."
    )
    places: int = Field(1, ge=1, le=64, description="Number of jobs that the node takes at one time.")
    pid: ProcessId | None = None
    engine_pid: ProcessId | None = None
    device: str = Field("", max_length=128)
    vram_bytes: Count | None = None
    price_micro_usd_per_hour: int = Field(
        0,
        ge=0,
        le=100_000_000_000,
        description="Price of all hardware that the node's jobs use. A node before a cluster gives the cluster's.",
    )
    versions: dict[str, str] = Field(default_factory=dict, max_length=32)

    @field_validator("machine_id", mode="before")
    @classmethod
    def _says_its_own_id(cls, value: object) -> object:
        if isinstance(value, str) and set("@~") & set(value):
            raise ValueError("is a name that the server gave; say the machine's own id, without @ and ~")
        return value


class Claim(Message):
    """`POST /v1/node/claim`. Repeating a `request_id` gives the same lease again."""

    request_id: str = Field(min_length=8, max_length=64)
    node: NodeInfo
    kinds: tuple[str, ...] = Field(min_length=1, max_length=32)
    held_models: tuple[ModelKey, ...] = Field((), max_length=32)
    joint_key: str | None = Field(
        None,
        max_length=64,
        description="Asks only for a job with this key, which may join the jobs that the node trains.",
    )
    max_pictures: int = Field(
        0, ge=0, le=MOST_PICTURES, description="Maximum pictures in one lease of the node; 0: the node draws none."
    )
    held_version: Count | None = Field(
        None, description="Version of the list of model files that the node holds; None: the node reports none."
    )
    held: HeldModels | None = Field(None, description="Model files that the server may not know yet.")
    fetching: str | None = Field(
        None, max_length=32, description="Base key of the model that the node fetches ahead."
    )
    fetching_left_s: float | None = Field(
        None, ge=0, description="Seconds until the fetched model is on the node, as far as the node can tell."
    )
    damaged: tuple[Sha256, ...] = Field(
        (),
        max_length=MOST_DAMAGED,
        description="Model files whose bytes had changed on the node's disk, found since its last claim.",
    )
    wait_s: float = Field(0, ge=0, le=MAX_WAIT_S)


class LeaseInput(Reply):
    """A picture to fetch before the engine starts, or the adapter to start from (role `init_lora`)."""

    role: str
    name: str
    caption: str | None
    repeats: int = 1
    resolution: int | None = None
    download: Download


class LeaseCheckpoint(Reply):
    """A committed checkpoint to go on from."""

    step: int
    download: Download


class Lease(Reply):
    """A job, for as long as the lease is renewed. `checkpoints` come highest step first: try them in order."""

    attempt_id: str
    attempt: int
    token: str
    job_id: str
    job_name: str
    kind: str
    spec: dict[str, Any]
    lease_s: float
    renew_every_s: float
    inputs: tuple[LeaseInput, ...] = ()
    files: tuple[LeaseFile, ...] = Field(
        (), description="Model files that the server has, such as a registered base; they go into the model store."
    )
    checkpoints: tuple[LeaseCheckpoint, ...] = ()
    mtbi_s: float
    max_at_risk_s: float
    hub_token: Confidential | None = Field(None, description="The value of the spec's hub_token_secret.")
    wandb_api_key: Confidential | None = Field(None, description="The value of the spec's wandb_api_key_secret.")
    joint_key: str | None = Field(
        None, description="Jobs with equal keys may share a batch of one engine; without a key the job runs alone."
    )


AnyLease = Lease | PictureLease
"""A lease of a job or of pictures. Both have an attempt's id, its token, and the times of renewal."""


class ClaimReply(Reply):
    """A lease, or why there is none."""

    lease: Lease | None = None
    picture_lease: PictureLease | None = None
    reason: str | None = Field(
        None,
        description="empty-queue, models-elsewhere, banned, too-small, project-at-ceiling, "
        "no-such-kind, quarantined, leases-held, draining …",
    )
    detail: str | None = None
    drain: bool = Field(False, description="true: the node should give its jobs back and leave.")
    held_version: int | None = Field(
        None, description="Version of the node's model files that the server knows; None: the node reports them all."
    )
    prefetch: PrefetchHint | None = Field(None, description="A model to fetch while the GPU works.")
    verify: tuple[str, ...] = Field(
        (), description="Model files that were damaged on another node: read them again before their next use."
    )

    @property
    def granted(self) -> AnyLease | None:
        """The lease of either sort, if the reply brings one."""
        return self.lease or self.picture_lease


class Order(StrEnum):
    """The server's order for a running attempt. Every order but CONTINUE ends the attempt.

    A canceled job's attempt has no lease any more: like every other write its beat is answered 409 `lease-lost`.
    """

    CONTINUE = "continue"
    DRAIN = "drain"  # checkpoint, commit, release; the node leaves
    RELEASE = "release"  # checkpoint, commit, release; the node stays and takes other work


class Heartbeat(Message):
    """`POST …/heartbeat`. Proof that the engine lives, and how far it is."""

    step: Count = 0
    total_steps: Count | None = None
    phase: str = Field("", max_length=64)
    engine_pid: ProcessId | None = None
    metrics: dict[str, float] = Field(default_factory=dict, max_length=64)
    held_models: tuple[ModelKey, ...] = Field((), max_length=32)


class HeartbeatReply(Reply):
    """The lease is renewed for `lease_s` from when the server got the beat."""

    order: Order
    lease_s: float
    renew_every_s: float
    mtbi_s: float


class LogLines(Message):
    """`POST …/log`. `first` numbers the first line within the attempt, so that a repeat adds nothing."""

    first: Count
    lines: tuple[str, ...] = Field(min_length=1, max_length=1000)


class StepMetrics(Message):
    """The metrics of one step."""

    step: Count
    values: dict[str, float] = Field(max_length=64)


class MetricBatch(Message):
    """The body of `POST …/metrics`: up to 1000 points."""

    points: tuple[StepMetrics, ...] = Field(min_length=1, max_length=1000)


class NoticeReport(Message):
    """`POST …/notice`: something for the job's events, such as a resume under another fingerprint.

    Of those with the same `notice_id` the attempt says only the first, however often it is delivered.
    """

    notice_id: str | None = Field(None, min_length=8, max_length=64)
    name: str = Field(pattern=r"^[a-z][a-z0-9-]{0,63}$")
    data: dict[str, Any] = Field(default_factory=dict)


class CommitCheckpoint(Message):
    """`POST …/checkpoints`. Only now does the checkpoint exist. Repeating it changes nothing."""

    step: Count
    sha256: Sha256
    size_bytes: ObjectSize
    upload_id: UploadId | None = None
    etags: tuple[str, ...] = Field((), max_length=10_000)


class CommitArtifact(Message):
    """The body of `POST …/artifacts`, which commits an uploaded artifact."""

    name: ArtifactName
    sha256: Sha256
    size_bytes: ObjectSize
    media_type: MediaType = "application/octet-stream"
    upload_id: UploadId | None = None
    etags: tuple[str, ...] = Field((), max_length=10_000)


class CommitCache(Message):
    """`PUT …/cache/{key}`: the first to commit a key wins; later ones are told which bytes stand."""

    sha256: Sha256
    size_bytes: ObjectSize
    upload_id: UploadId | None = None
    etags: tuple[str, ...] = Field((), max_length=10_000)


class Committed(Reply):
    """The object that is committed now. `superfluous`: the same object was committed before."""

    sha256: Sha256
    size_bytes: int
    superfluous: bool = False


class CacheReply(Reply):
    """The reply of `GET …/cache/{key}`; `download` is None when the cache has no such key."""

    download: Download | None = None


class CompleteAttempt(Message):
    """`POST …/complete`. Refused unless every artifact named was committed by this attempt."""

    step: Count
    artifacts: tuple[str, ...] = ()
    summary: dict[str, Any] = Field(default_factory=dict)


class FailAttempt(Message):
    """The body of `POST …/fail`, which ends an attempt with a reason."""

    reason: Reason
    message: str = Field(max_length=4000)
    faults: tuple[FaultLine, ...] = Field((), max_length=1000)
    exit_code: int | None = Field(None, ge=-(2**31), lt=2**31)
    log_tail: str = Field("", max_length=20_000)
    step: Count = 0
    together: tuple[str, ...] = Field(
        (), max_length=64, description="Ids of all attempts that the same fault of the engine ended, with this one."
    )


class ReleaseAttempt(Message):
    """`POST …/release`: the node gives the job back (preempted or released)."""

    reason: Reason = Reason.RELEASED
    message: str = Field("", max_length=4000)
    step: Count = 0


class AttemptEnded(Reply):
    """The state of the job after the attempt's end."""

    job_state: str = Field(json_schema_extra={"enum": [str(state) for state in JobState]})
