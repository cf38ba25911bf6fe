"""The one pydantic base of everything that crosses a border."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

MAX_COUNT = 2**53 - 1
"""The largest integer that every reader of JSON keeps exact; far below what the store's columns hold."""


class Message(BaseModel):
    """Immutable; a field that is not known is a fault, not a shrug."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, protected_namespaces=())


class Reply(BaseModel):
    """What a server or an engine says. Readers ignore fields that they do not know, so that it may grow."""

    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True, protected_namespaces=())


Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Label = Annotated[str, StringConstraints(min_length=1, max_length=128)]
FileName = Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f/\\]+$")]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
ObjectSize = Annotated[int, Field(ge=1, le=2**40, description="In bytes.")]
ProcessId = Annotated[int, Field(ge=1, lt=2**31)]
UploadId = Annotated[str, StringConstraints(max_length=64)]
