"""Agent and engine talk in JSON lines: the agent writes to the engine's standard input, and the engine to its
standard output. Bytes travel as files; a message names a path only when the file is complete on disk.

`docs/reference/protocol.md` describes the conversation. It is small on purpose: a script of twenty lines can be an
engine.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from giornata.domain.jobs.reasons import Reason
from giornata.protocol.model import Reply, Sha256
from giornata.protocol.project.secrets import Confidential


class InputFile(Reply):
    """A picture of the job's dataset, the adapter that it starts from (`init_lora`), the checkpoint of a validation,
    or a file that pictures are drawn with (`base` to `annotation`): on the node's disk and verified."""

    role: Literal[
        "instance",
        "class",
        "init_lora",
        "checkpoint",
        "base",
        "vae",
        "lora",
        "embedding",
        "controlnet",
        "refiner",
        "picture",
        "annotation",
    ] = "instance"
    path: Path
    sha256: Sha256
    name: str
    caption: str | None = None
    repeats: int = Field(1, ge=1)
    resolution: int | None = Field(None, ge=1)


class ResumePoint(Reply):
    """The checkpoint to go on from, already on disk and verified."""

    step: int
    path: Path


# ---- agent to engine --------------------------------------------------------------------------------------


class Start(Reply):
    """Work on this attempt. `directory` is the attempt's own and empty; write nothing outside it.

    `hub_token` opens gated models on the hub for this one job, and `wandb_api_key` uploads its run: never write
    either anywhere.
    Attempts with equal `joint_key` may share a batch (`giornata.protocol.node.joint`); one without a key runs alone.
    """

    type: Literal["start"] = "start"
    attempt: str
    job: str
    kind: str
    spec: dict[str, Any]
    directory: Path
    inputs: tuple[InputFile, ...] = ()
    resume: ResumePoint | None = None
    mtbi_s: float = 126_000.0
    max_at_risk_s: float = 60.0
    hub_token: Confidential | None = None
    wandb_api_key: Confidential | None = None
    joint_key: str | None = None


class WriteCheckpoint(Reply):
    """Write a checkpoint at the next step's end, and go on."""

    type: Literal["checkpoint"] = "checkpoint"
    attempt: str


class Stop(Reply):
    """Stop. With `checkpoint`, write one first; without, write nothing more. Answered by `stopped`."""

    type: Literal["stop"] = "stop"
    attempt: str
    checkpoint: bool


class CacheAnswer(Reply):
    """Answer to `cache_get`: the file, or None when no attempt has made it yet."""

    type: Literal["cache"] = "cache"
    attempt: str
    key: str
    path: Path | None


class DropPictures(Reply):
    """Stop drawing these pictures, as (order, number): nobody wants them any more. The others go on."""

    type: Literal["drop_pictures"] = "drop_pictures"
    attempt: str
    pictures: tuple[tuple[str, int], ...]


class Shutdown(Reply):
    """End the process. The end of standard input means the same, at once."""

    type: Literal["shutdown"] = "shutdown"


ToEngine = Annotated[
    Start | WriteCheckpoint | Stop | CacheAnswer | DropPictures | Shutdown, Field(discriminator="type")
]

# ---- engine to agent --------------------------------------------------------------------------------------


class Hello(Reply):
    """The engine's first line: its identity and its protocol."""

    type: Literal["hello"] = "hello"
    protocol: int
    pid: int
    kinds: tuple[str, ...]
    device: str = "cpu"
    vram_bytes: int | None = None
    free_vram_bytes: int | None = None
    versions: dict[str, str] = Field(default_factory=dict)


class PhaseMessage(Reply):
    """The engine's current phase, before and after the steps: loading, caching, training, exporting, sampling …"""

    type: Literal["phase"] = "phase"
    attempt: str
    name: str
    done: int | None = None
    total: int | None = None


class Progress(Reply):
    """A step is done. `metrics` are numbers by name (loss, learning_rate, step_ms,
    images_per_s, data_wait_ms; on a GPU also mfu, vram_peak_bytes and graph_passes)."""

    type: Literal["progress"] = "progress"
    attempt: str
    step: int
    total: int | None = None
    metrics: dict[str, float] = Field(default_factory=dict)


class CheckpointWritten(Reply):
    """A checkpoint is complete on disk (written aside, synced, renamed). `cost_s` is what it held the steps up."""

    type: Literal["checkpoint"] = "checkpoint"
    attempt: str
    step: int
    path: Path
    cost_s: float = 0.0


class ArtifactWritten(Reply):
    """A result for the user is complete on disk."""

    type: Literal["artifact"] = "artifact"
    attempt: str
    name: str
    path: Path
    media_type: str = "application/octet-stream"


class PictureWritten(Reply):
    """A picture of a lease is complete on disk. `flags` is a `giornata.protocol.node.pictures.PictureFlag`; a blocked
    picture has no path."""

    type: Literal["picture"] = "picture"
    attempt: str
    order_id: str
    number: int
    path: Path | None
    media_type: str = "image/png"
    flags: int = 0


class PictureFailed(Reply):
    """A picture of a lease cannot be drawn here; the others go on."""

    type: Literal["picture_failed"] = "picture_failed"
    attempt: str
    order_id: str
    number: int
    reason: Reason
    message: str


class CacheGet(Reply):
    """Asks the platform for something that an earlier job of this project may have made."""

    type: Literal["cache_get"] = "cache_get"
    attempt: str
    key: str


class CachePut(Reply):
    """Offers the platform something that later jobs of this project may use."""

    type: Literal["cache_put"] = "cache_put"
    attempt: str
    key: str
    path: Path


class Log(Reply):
    """A line for the job's log."""

    type: Literal["log"] = "log"
    attempt: str
    line: str


class Notice(Reply):
    """Something that belongs into the job's events, such as a resume under another fingerprint."""

    type: Literal["notice"] = "notice"
    attempt: str
    name: str
    data: dict[str, Any] = Field(default_factory=dict)


class Done(Reply):
    """The job is done; every artifact was announced before. `summary` goes into the job's result."""

    type: Literal["done"] = "done"
    attempt: str
    step: int
    summary: dict[str, Any] = Field(default_factory=dict)


class FaultLine(Reply):
    """One thing that is wrong with the input."""

    where: str
    message: str
    hint: str = ""


class Failed(Reply):
    """The attempt cannot go on. `faults` lists all that is wrong, when it is the job's own fault.

    `together` names all attempts that the same fault ended, this one included, when several shared a batch: any of
    them may be the cause, and each should be tried alone.
    """

    type: Literal["failed"] = "failed"
    attempt: str
    reason: Reason
    message: str
    faults: tuple[FaultLine, ...] = ()
    together: tuple[str, ...] = ()


class StoppedMessage(Reply):
    """Answer to `stop`; `step` is that of the last checkpoint announced, if any."""

    type: Literal["stopped"] = "stopped"
    attempt: str
    step: int | None = None


class Held(Reply):
    """The warm base models (`giornata.protocol.specs.model_key`), and the GPU memory that the next job could have.

    The memory is the free part, and the part that this engine would give back. `host_files` are the sha256 of model
    files whose weights are in host memory, and need not be read again. The engine sends the message when any of it
    changes between jobs.
    """

    type: Literal["held"] = "held"
    models: tuple[str, ...]
    host_files: tuple[Sha256, ...] = ()
    free_vram_bytes: int | None = None


class FreePlaces(Reply):
    """The number of further attempts with this key that could join those at work, `attempts`.

    The engine sends the message whenever either changes, and with `free` 0 when no attempt can join any more.

    An engine that never says so is given one attempt at a time. The names make the count safe: whoever was sent to
    the engine and is not among them yet will take one of the free places.
    """

    type: Literal["seats"] = "seats"
    key: str
    free: int
    attempts: tuple[str, ...] = ()


class Alive(Reply):
    """Sent every second by a thread of the engine: the process is there, if not necessarily busy."""

    type: Literal["alive"] = "alive"


FromEngine = Annotated[
    Hello
    | PhaseMessage
    | Progress
    | CheckpointWritten
    | ArtifactWritten
    | PictureWritten
    | PictureFailed
    | CacheGet
    | CachePut
    | Log
    | Notice
    | Done
    | Failed
    | StoppedMessage
    | Held
    | FreePlaces
    | Alive,
    Field(discriminator="type"),
]

TO_ENGINE: TypeAdapter[ToEngine] = TypeAdapter(ToEngine)
FROM_ENGINE: TypeAdapter[FromEngine] = TypeAdapter(FromEngine)
