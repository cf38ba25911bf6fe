"""Messages that carry a project into another one: files of an export, jobs and histories of an import."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field, StringConstraints

from giornata.domain.generation.picture import SafetyPolicy
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.events import EventType
from giornata.protocol.generation.specs import MAX_PICTURES
from giornata.protocol.model import ArtifactName, Count, Label, MediaType, Message, ObjectSize, Reply, Sha256
from giornata.protocol.orders.gallery import Tag
from giornata.protocol.uploads import Download, SignedUrl

MOST_FILES = 200
MOST_RESULTS = 5_000
MOST_ROWS = 1_000
MOST_ERROR_CHARS = 100_000
MOST_MESSAGE_CHARS = 10_000
MOST_MARKS = 1_000
"""Tags of one picture at most."""
MOST_EVENTS = 100_000
"""Events of one imported job at most."""
MOST_IMPORTED_PICTURES = 64
"""Pictures of one request at most: storage is asked for each of them."""
ShownName = Annotated[str, StringConstraints(max_length=128)]
AttemptNumber = Annotated[int, Field(ge=0, le=1_000_000)]
JobName = Annotated[str, StringConstraints(pattern=r"^job_[0-9a-z]{1,60}$")]
Number = Annotated[float, Field(allow_inf_nan=False)]
EndedState = Literal["succeeded", "failed", "canceled", "expired"]


class ExportFiles(Message):
    """`POST /v1/export/files`: files of the project that an export puts into its archive."""

    sha256s: tuple[Sha256, ...] = Field(min_length=1, max_length=MOST_FILES)


class ExportedFiles(Reply):
    """The reply of `POST /v1/export/files`: the source of each file, in the order asked."""

    items: tuple[Download, ...]


class ImportedCheckpoint(Message):
    """A checkpoint of an imported job. The project has its bytes."""

    step: Count
    sha256: Sha256


class ImportedArtifact(Message):
    """A result of an imported job. The project has its bytes."""

    name: ArtifactName
    sha256: Sha256
    media_type: MediaType


class ImportedAttempt(Message):
    """An attempt that was made elsewhere. Ids and names are those of the installation that exported it."""

    number: int = Field(ge=1, le=1_000_000)
    id: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    node_id: ShownName
    machine_id: ShownName
    node_name: ShownName
    started_at: AwareDatetime
    first_step_at: AwareDatetime | None = None
    ended_at: AwareDatetime
    lease_expires_at: AwareDatetime
    lapsed: bool = False
    reason: Reason | None = None
    message: Annotated[str, StringConstraints(max_length=MOST_MESSAGE_CHARS)] | None = None
    start_step: Count = 0
    last_step: Count = 0
    committed_step: Count = 0
    phase: Annotated[str, StringConstraints(max_length=64)] = ""
    billed_s: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] = 0.0
    cost_micro_usd: Count = 0


class ImportJob(Message):
    """`POST /v1/import/jobs`: a job that ended elsewhere, with its checkpoints and its results.

    The spec of a sweep names jobs that were imported before; they belong to it from then on.
    """

    imported_from: JobName = Field(
        description="Job's id in the project that exported it. The id becomes the label `imported-from`."
    )
    kind: Annotated[str, StringConstraints(min_length=1, max_length=32)]
    name: Label | None = Field(None, description="Name of the job for people. Default: its id.")
    state: EndedState
    spec: dict[str, Any]
    labels: dict[str, str] = Field(default_factory=dict, max_length=64)
    priority: int = Field(0, ge=-100, le=100)
    min_vram_bytes: Count = 0
    step: Count = 0
    error: Annotated[str, StringConstraints(max_length=MOST_ERROR_CHARS)] | None = None
    result: dict[str, Any] = Field(default_factory=dict)
    retry_of: JobName | None = Field(None, description="Id of a job of this project, which this one retries.")
    created_at: AwareDatetime
    started_at: AwareDatetime | None = None
    ended_at: AwareDatetime
    cost_micro_usd: Count | None = Field(
        None,
        description="Cost where it ran. The job shows it as `imported_cost_micro_usd`; no budget here counts it.",
    )
    checkpoints: tuple[ImportedCheckpoint, ...] = Field((), max_length=MOST_RESULTS)
    artifacts: tuple[ImportedArtifact, ...] = Field((), max_length=MOST_RESULTS)
    history_follows: bool = Field(
        False, description="Pictures and a history are sent next; the import ends with the page that `is_last`."
    )


class ImportedPicture(Message):
    """A picture of an imported order that had ended. A failed, blocked or deleted one has no bytes.

    `place` counts the pictures of the order from 1 in the order in which they ended.
    """

    number: int = Field(ge=0, lt=MAX_PICTURES)
    state: Literal["succeeded", "failed"]
    place: int = Field(ge=1, le=MAX_PICTURES)
    sha256: Sha256 | None = None
    size_bytes: ObjectSize | None = None
    flags: tuple[Literal["blocked", "out-of-memory-once", "unsafe", "unchecked"], ...] = Field((), max_length=4)
    safety: SafetyPolicy = Field(
        SafetyPolicy.OFF,
        description="Policy for unsafe pictures under which it was drawn. Where this project has one, a picture "
        "that no safety checker has seen gets the flag `unchecked`.",
    )
    error: Annotated[str, StringConstraints(max_length=MOST_ERROR_CHARS)] | None = None
    starred: bool = False
    tags: tuple[Tag, ...] = Field((), max_length=MOST_MARKS)


class ImportPictures(Message):
    """`POST /v1/import/jobs/{job_id}/pictures`: pictures of an imported order whose history follows."""

    pictures: tuple[ImportedPicture, ...] = Field(min_length=1, max_length=MOST_IMPORTED_PICTURES)


class ImportedPictureUpload(Reply):
    """A signed PUT for the bytes of one picture."""

    number: int
    request: SignedUrl


class ImportedPictures(Reply):
    """The reply of `POST /v1/import/jobs/{job_id}/pictures`.

    Pictures whose bytes storage has are there now. For the others there is an upload each: send the bytes, then
    the same request once more. `withheld` are numbers of pictures that come in without their bytes, because the
    project blocks unsafe pictures and these are unsafe or `unchecked`.
    """

    job_id: str
    withheld: tuple[int, ...] = ()
    uploads: tuple[ImportedPictureUpload, ...] = ()


class ImportedMetrics(Message):
    """The metrics of one step of an imported job."""

    step: Count
    attempt: AttemptNumber
    at: AwareDatetime
    values: dict[Annotated[str, StringConstraints(min_length=1, max_length=128)], Number] = Field(max_length=256)


class ImportedLine(Message):
    """A line of an imported job's log. `number` counts the lines of its attempt."""

    number: Count
    attempt: AttemptNumber
    at: AwareDatetime
    line: Annotated[str, StringConstraints(max_length=100_000)]


class ImportedEvent(Message):
    """An event of an imported job. `number` counts the events of the job."""

    number: int = Field(ge=0, lt=MOST_EVENTS)
    type: EventType
    attempt: AttemptNumber | None = None
    at: AwareDatetime
    data: dict[str, Any] = Field(default_factory=dict)


class ImportHistory(Message):
    """`POST /v1/import/jobs/{job_id}/history`: metrics, lines, attempts and events.

    Those that are there already stay.
    """

    metrics: tuple[ImportedMetrics, ...] = Field((), max_length=MOST_ROWS)
    lines: tuple[ImportedLine, ...] = Field((), max_length=MOST_ROWS)
    attempts: tuple[ImportedAttempt, ...] = Field(
        (),
        max_length=MOST_ROWS,
        description="Attempts of the job. Accepted until the import has ended; no bill here counts them.",
    )
    events: tuple[ImportedEvent, ...] = Field(
        (),
        max_length=MOST_ROWS,
        description="Events in their order. Accepted until the import has ended; webhooks get none of them.",
    )
    is_last: bool = Field(
        False, description="true: this is the last page. The import ends with the event `job.imported`."
    )


class ImportedHistory(Reply):
    """The reply of `POST /v1/import/jobs/{job_id}/history`: the job, and when its history was written."""

    job_id: str
    at: datetime
