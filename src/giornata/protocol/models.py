"""The registry of model files that pictures are drawn with: added, listed, pinned, removed."""

from datetime import datetime
from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from giornata.domain.generation.model_kinds import ModelFamily, ModelKind
from giornata.protocol.model import Message, Reply, Sha256
from giornata.protocol.model_references import ModelSource
from giornata.protocol.project.secrets import SecretName

Reference = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=r"^[^\x00-\x1f\x7f]+$")]
GivenName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._ -]{0,126}[A-Za-z0-9._-]?$")]
"""A name that a user gives: it can be no URL, no URN and no hub id."""


class AddModel(Message):
    """`POST /v1/models`: a name for an uploaded file (`sha256`) or for a `reference`. Exactly one is given.

    The server brings the bytes of a reference into its own storage before it answers, once for all orders. `kind` and
    `family` are needed only where the file does not tell them.
    """

    name: GivenName
    reference: Reference | None = Field(
        None,
        description="URL, owner/name:file.safetensors or owner/name on the hub, or Civitai's URN.",
    )
    sha256: Sha256 | None = Field(
        None, description="sha256 of an uploaded file, or the sha256 that the bytes of the reference must have."
    )
    kind: ModelKind | None = None
    family: ModelFamily | None = None
    pinned: bool = False
    shared: bool = Field(
        False, description="Share the model with all projects of the installation. Only for operators."
    )
    token_secret: SecretName | None = Field(
        None, description="Project's secret with a token for the source. Default: HF_TOKEN or CIVITAI_TOKEN."
    )

    @model_validator(mode="after")
    def _has_bytes(self) -> Self:
        if self.reference is None and self.sha256 is None:
            raise ValueError("reference or sha256 is required")
        return self


class ChangeModel(Message):
    """`PATCH /v1/models/{name}`: a pinned model is kept when it is not used."""

    pinned: bool


class RegisteredModel(Reply):
    """A model that orders may name. One without a sha256 is loaded from the hub by the engine.

    A model that an order named by a reference has the reference as its name. `reference` is empty for an upload.
    """

    name: str
    sha256: Sha256 | None
    kind: ModelKind
    family: ModelFamily | None
    size_bytes: int
    source: ModelSource
    reference: str
    pinned: bool
    shared: bool
    created_at: datetime
    used_at: datetime
    created_by: str | None = Field(
        None, description="The person or the key that made it; null: an order that named it, or not known."
    )
    allowed: bool | None = Field(
        None, description="In lists: false when the project's quotas do not allow it. null: not looked at."
    )


class ModelPage(Reply):
    """`GET /v1/models`: the project's models and the shared ones, newest first."""

    items: tuple[RegisteredModel, ...]
    next: str | None = None


class ModelCoverage(Reply):
    """`GET /v1/models/coverage`: how many of the connected nodes that serve the project hold a model, each node
    counted in its fastest tier. `fetching` nodes do not hold the model yet."""

    name: str
    nodes: int
    gpu: int
    host: int
    disk: int
    fetching: int
