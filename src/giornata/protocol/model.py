"""The one pydantic base of everything that crosses a border."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints


class Message(BaseModel):
    """Immutable; a field that is not known is a fault, not a shrug."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, protected_namespaces=())


class Reply(BaseModel):
    """What a server or an engine says. Readers ignore fields that they do not know, so that it may grow."""

    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True, protected_namespaces=())


Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Label = Annotated[str, StringConstraints(min_length=1, max_length=128)]
FileName = Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f/\\]+$")]
