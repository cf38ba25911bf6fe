"""Orders and their pictures as users see them: `POST /v1/generations`, and `GET /v1/jobs/{id}/pictures`."""

from typing import Any

from pydantic import Field

from giornata.domain.generation.picture import PictureState
from giornata.protocol.jobs import Job, JobDeadline, MicroUsd, MinVram
from giornata.protocol.model import Label, Message, Reply, Sha256
from giornata.protocol.uploads import SignedUrl


class GenerationRequest(Message):
    """`POST /v1/generations`: the fields of a `generate` spec beside those of a job.

    `prompt` may be a text or a list. `model` and `vae` may be names. A LoRA may be written `NAME:WEIGHT`. Names in
    capitals are good too.
    """

    model_config = Message.model_config | {"extra": "allow"}

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

    def fields(self) -> dict[str, Any]:
        """Return the fields of the spec, under the names that the request has."""
        return dict(self.model_extra or {})


class OrderPicture(Reply):
    """A picture of an order. `id` grows along the order as pictures end: pass it as Last-Event-ID to go on from
    there."""

    id: int = Field(0, description="Position among the pictures that have ended. 0: this one has not ended.")
    number: int = Field(description="Number of the picture in the order, from 0.")
    state: PictureState
    seed: int
    prompt: str | None = Field(
        None, description="Prompt of the picture, with choices in braces and wildcards as they were drawn."
    )
    sha256: Sha256 | None = None
    size_bytes: int | None = None
    media_type: str
    flags: tuple[str, ...] = Field(
        (),
        description="`blocked`: by the safety checker, and without a file. `unsafe`: the checker found "
        "something, and the project keeps such pictures. `unchecked`: imported, and no checker has seen it. "
        "`out-of-memory-once`: drawn again in a smaller batch.",
    )
    error: str | None = Field(None, description="Reason why the picture could not be drawn.")
    last_error: str | None = Field(
        None, description="Reason why the latest node could not draw the picture, while it has not failed."
    )
    filename: str = Field(description="Name for the file, different from names of other orders' files.")
    request: SignedUrl | None = Field(None, description="Signed request that fetches the file, until it expires.")


class OrderPicturePage(Reply):
    """`GET /v1/jobs/{id}/pictures`; by number. Go on with `after=<next>`."""

    items: tuple[OrderPicture, ...]
    next: int | None = None


class Generation(Reply):
    """The reply of `POST /v1/generations`: the order, and its first pictures that are done."""

    job: Job
    pictures: tuple[OrderPicture, ...] = ()
    next: int | None = Field(
        None, description="Value for `after` in requests for further `pictures` of the job, if there are any."
    )
