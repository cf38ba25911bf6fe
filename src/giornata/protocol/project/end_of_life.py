"""Messages about the end of life: retention, pins, and what was deleted."""

from datetime import datetime
from typing import Annotated

from pydantic import Field

from giornata.domain.files.retention import MOST_DAYS, KeptClass
from giornata.protocol.model import Count, Message, Reply

Days = Annotated[int, Field(ge=1, le=MOST_DAYS)] | None
PIN_PATTERN = r"^[a-z0-9_-]{1,64}(@[0-9]{1,15})?$"


class SetRetention(Message):
    """`PUT /v1/projects/{id}/retention`: days for which each class is kept. Null: until somebody deletes it."""

    datasets: Days = Field(
        None, description="Days after a dataset was made, and after the last job that used it ended."
    )
    checkpoints: Days = Field(None, description="Days after the end of the job, which then cannot go on from them.")
    artifacts: Days = Field(None, description="Days after the end of the job.")
    pictures: Days = Field(None, description="Days after the end of the order. The rows stay, without their bytes.")
    logs: Days = Field(None, description="Days after the end of the job.")
    metrics: Days = Field(None, description="Days after the end of the job.")
    events: Days = Field(None, description="Days after the end of the job.")


class ProjectRetention(Reply):
    """Days after the end of a job for which a project keeps each kind of data. Null: until somebody deletes it."""

    project_id: str
    datasets: int | None = None
    checkpoints: int | None = None
    artifacts: int | None = None
    pictures: int | None = None
    logs: int | None = None
    metrics: int | None = None
    events: int | None = None


class AgedClass(Reply):
    """The sum of what retention would take of a class now.

    Of datasets, checkpoints, artifacts and pictures the bytes are those of objects that storage would lose. What
    another row names stays, and is not counted. Of logs, metrics and events the bytes are an estimate.
    """

    kept: KeptClass
    days: int
    count: Count = Field(description="Number of rows; of datasets, their number. Of pictures, those with a file.")
    size_bytes: Count = Field(description="Bytes of objects, or of texts in UTF-8 where `is_estimate`.")
    is_estimate: bool = Field(
        False,
        description="True for rows of the database: its own overhead is not counted, and its file need not shrink.",
    )
    oldest_at: datetime | None = Field(None, description="End of the oldest job, or birth of the oldest dataset.")
    examples: list[str] = Field(description="Ids of the oldest jobs or datasets, at most five.")


class RetentionPreview(Reply):
    """The sums of what retention would take now, by class."""

    project_id: str
    items: list[AgedClass]
    size_bytes: Count = Field(description="Bytes of all classes together, with estimates.")
    stored_bytes: Count = Field(0, description="Bytes of objects in storage alone, without estimates.")


class Pin(Reply):
    """A job, a dataset or a checkpoint (`JOB@STEP`) of which retention takes nothing."""

    target: str
    pinned: bool


class PinList(Reply):
    """`GET /v1/pins`: all that is pinned in the project."""

    items: list[Pin]


class Deletion(Reply):
    """Something that was deleted. One line of it stays, and what it cost."""

    id: str
    what: str = Field(description="job, dataset or project")
    objects: Count = Field(description="Objects that were deleted in storage.")
    size_bytes: Count = Field(description="The size of these objects.")
    finished: bool = Field(description="false: rows or bytes are left, which the server deletes by itself.")
