"""Uploads and downloads by signed URLs, and datasets of verified blobs.

The bytes themselves go straight to storage.
"""

from datetime import datetime

from pydantic import AliasChoices, Field

from giornata.domain.files.datasets import LEAST_RESOLUTION, MAX_DATASET_ITEMS, MAX_REPEATS, MOST_RESOLUTION
from giornata.protocol.model import FileName, Message, ObjectSize, Reply, Sha256

MAX_FILES_PER_REQUEST = 1000


class SignedUrl(Reply):
    """One request that may be made without a key: this method, this URL, these headers, until `expires_at`."""

    method: str
    url: str
    headers: dict[str, str] = Field(default_factory=dict)
    expires_at: datetime


class SignedPart(Reply):
    """One part of a multipart upload; `number` counts from 1."""

    number: int
    size_bytes: int
    request: SignedUrl


class FileToUpload(Message):
    """A file that the client wants to send. `name` appears only in messages."""

    sha256: Sha256
    size_bytes: ObjectSize
    name: FileName | None = None


class UploadRequest(Message):
    """`POST /v1/uploads` and `POST /v1/node/attempts/{id}/uploads`."""

    files: tuple[FileToUpload, ...] = Field(min_length=1, max_length=MAX_FILES_PER_REQUEST)


class UploadTicket(Reply):
    """The place for the upload of one file. With `exists` no upload is needed: the project has these bytes already.

    Otherwise exactly one of `put` and `parts` is given; afterwards the upload is completed with the parts' ETags
    in order (a single PUT has one, or none).
    """

    sha256: Sha256
    exists: bool
    upload_id: str | None = None
    put: SignedUrl | None = None
    parts: tuple[SignedPart, ...] = ()


class UploadReply(Reply):
    """One ticket for each distinct sha256 asked for, in the order asked."""

    items: tuple[UploadTicket, ...]


class RenewParts(Message):
    """`POST …/uploads/{upload_id}/urls`: fresh URLs for parts whose URLs ran out. Empty: the single PUT's."""

    numbers: tuple[int, ...] = Field((), max_length=10_000)


class CompleteUpload(Message):
    """`POST /v1/uploads/{upload_id}/complete`. May be repeated."""

    etags: tuple[str, ...] = Field((), max_length=10_000)


class Blob(Reply):
    """Bytes that the server has verified."""

    sha256: Sha256
    size_bytes: int


class Download(Reply):
    """The source of an object's bytes, and the hash that they must have."""

    sha256: Sha256
    size_bytes: int
    request: SignedUrl


class DatasetItem(Message):
    """One picture. `caption` overrides the job's instance prompt."""

    sha256: Sha256
    name: FileName
    caption: str | None = Field(None, min_length=1, max_length=2000)
    repeats: int = Field(
        1,
        ge=1,
        le=MAX_REPEATS,
        description="Number of times that one epoch trains the picture.",
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
    created_by: str | None = Field(None, description="The person or the key that made it; null: not known.")
    picture_count: int
    size_bytes: int
    notes: tuple[str, ...] = ()
    items: tuple[DatasetItem, ...] = ()


class DatasetPage(Reply):
    """The reply of `GET /v1/datasets`: a page of datasets."""

    items: tuple[Dataset, ...]
    next: str | None = None
