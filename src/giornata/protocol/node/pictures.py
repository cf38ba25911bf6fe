"""The node's side of generation: leases of pictures, upload URLs, results. Renewal and ends are those of attempts."""

from enum import IntFlag
from typing import Any

from pydantic import Field

from giornata.domain.generation.picture import MOST_PICTURES, SafetyPolicy
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.generation.specs import MAX_PICTURES
from giornata.protocol.model import MediaType, Message, ObjectSize, Reply, Sha256
from giornata.protocol.uploads import Download

ANNOTATION_ROLE = "annotation"


class PictureFlag(IntFlag):
    """Bits that mark a drawn picture; their sum is stored with it."""

    NOTHING = 0
    BLOCKED = 1  # the safety checker found something; the picture was never uploaded
    OUT_OF_MEMORY_ONCE = 2  # drawn again in a smaller batch
    UNSAFE = 4  # the safety checker found something; the picture was kept
    UNCHECKED = 8  # imported into a project that has pictures checked, and no safety checker has seen it


class PictureId(Message):
    """One picture: its order, and its number in the order from 0."""

    order_id: str = Field(pattern=r"^[A-Za-z0-9_-]{1,40}$")
    number: int = Field(ge=0, lt=MAX_PICTURES)


class LeasedPicture(Reply):
    """A picture to draw. `params` is a `giornata.protocol.generation.picture.PictureParams` as JSON.

    `safety` is the stricter of what its project demands and what its order asks for.
    """

    order_id: str
    number: int
    params: dict[str, Any]
    safety: SafetyPolicy = SafetyPolicy.OFF


class LeaseFile(Reply):
    """A file that pictures of a lease need: a model, or a picture to start from. `role` is that of
    `PictureParams.files`, or `annotation`; then `name` is its key, and the node may do without the file."""

    role: str
    name: str
    download: Download


class PictureLease(Reply):
    """Pictures of one batch key, of any orders, for as long as the lease is renewed.

    `base_key` names their base model: a node that holds the model says so in its claims (`held_models`).
    `wanted_annotations` are keys of annotations that the project does not keep yet: the node that makes one puts it
    into the project's cache. `only_annotates`: the pictures wait for these annotations. The node draws none of them,
    and completes the lease once the annotations are in the cache. The token, renewal (`POST …/heartbeat`) and ends
    (`complete`, `fail`, `release`) are those of an attempt.
    """

    attempt_id: str
    token: str
    batch_key: str
    base_key: str = ""
    lease_s: float
    renew_every_s: float
    pictures: tuple[LeasedPicture, ...]
    files: tuple[LeaseFile, ...] = ()
    wanted_annotations: tuple[str, ...] = ()
    only_annotates: bool = False


class DrawnPicture(PictureId):
    """A picture that lies on the node's disk. A blocked one has no sha256, because it is not uploaded."""

    sha256: Sha256 | None = None
    size_bytes: ObjectSize | None = None
    media_type: MediaType = "image/png"
    flags: int = Field(0, ge=0, le=255)


class PictureUploads(Message):
    """The body of `POST …/picture-uploads`: files that the node wants to upload."""

    pictures: tuple[DrawnPicture, ...] = Field(min_length=1, max_length=MOST_PICTURES)


class PictureUpload(Reply):
    """A signed PUT for one picture. The URL signs the object and its checksum; `headers` have to be sent with it."""

    order_id: str
    number: int
    url: str
    headers: dict[str, str] = Field(default_factory=dict)


class PictureUploadUrls(Reply):
    """The reply of `POST …/picture-uploads`. Pictures that are not wanted any more have no URL."""

    uploads: tuple[PictureUpload, ...]


class FailedPicture(PictureId):
    """A picture that this node could not draw, and why."""

    reason: Reason
    message: str = Field(max_length=4000)


class PictureResults(Message):
    """The body of `POST …/pictures`: uploaded or blocked pictures, and those that failed. Repeating it changes
    nothing."""

    drawn: tuple[DrawnPicture, ...] = Field((), max_length=MOST_PICTURES)
    failed: tuple[FailedPicture, ...] = Field((), max_length=MOST_PICTURES)
    complete: bool = False  # no further picture comes: the report also completes the lease, as `POST …/complete` does


class PictureResultsReply(Reply):
    """`accepted`: results that stand now. `dropped`: pictures of this lease that nobody wants any more.

    `left`: pictures that the lease still has to draw; the node draws no other. None: the server does not say.
    `ended`: the report has completed the lease, which needs no `POST …/complete` any more.
    """

    accepted: tuple[PictureId, ...] = ()
    dropped: tuple[PictureId, ...] = ()
    left: tuple[PictureId, ...] | None = None
    ended: bool = False
