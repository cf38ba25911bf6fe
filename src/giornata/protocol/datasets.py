"""A dataset is a list of verified blobs with captions."""

from datetime import datetime

from pydantic import AliasChoices, Field

from giornata.domain.datasets import LEAST_RESOLUTION, MAX_DATASET_ITEMS, MAX_REPEATS, MOST_RESOLUTION
from giornata.protocol.model import FileName, Message, Reply, Sha256


class DatasetItem(Message):
    """One picture. `caption` overrides the job's instance prompt."""

    sha256: Sha256
    name: FileName
    caption: str | None = Field(None, min_length=1, max_length=2000)
    repeats: int = Field(
        1,
        ge=1,
        le=MAX_REPEATS,
        description="How often an epoch holds it.",
        validation_alias=AliasChoices("repeats", "num_repeats"),
    )
    resolution: int | None = Field(
        None,
        ge=LEAST_RESOLUTION,
        le=MOST_RESOLUTION,
        description="Resolution in pixels at which this picture is trained, where that is less than the job's. "
        "Such a job needs enable_bucket. Default: the job's resolution.",
    )


class CreateDataset(Message):
    """`POST /v1/datasets`. The pictures are inspected before the reply; all faults come back at once."""

    items: tuple[DatasetItem, ...] = Field(min_length=1, max_length=MAX_DATASET_ITEMS)
    labels: dict[str, str] = Field(default_factory=dict, max_length=32)


class Dataset(Reply):
    """The same items give the same id: creating a dataset again changes nothing."""

    id: str
    created_at: datetime
    picture_count: int
    size_bytes: int
    notes: tuple[str, ...] = ()
    items: tuple[DatasetItem, ...] = ()


class DatasetPage(Reply):
    """`GET /v1/datasets`."""

    items: tuple[Dataset, ...]
    next: str | None = None
