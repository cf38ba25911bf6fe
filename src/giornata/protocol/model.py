"""The one pydantic base of everything that crosses a border."""

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

MAX_COUNT = 2**53 - 1
"""The largest integer that every reader of JSON keeps exact; far below what the store's columns hold."""


class Message(BaseModel):
    """An immutable message. An unknown field is a fault."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, protected_namespaces=())


class Reply(BaseModel):
    """A message from a server or an engine. Readers ignore unknown fields, so that messages may grow."""

    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True, protected_namespaces=())


Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Label = Annotated[str, StringConstraints(min_length=1, max_length=128)]
FileName = Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f/\\]+$")]
OCTETS = "application/octet-stream"
MEDIA_TYPE = re.compile(
    r"[A-Za-z0-9!#$&^_.+-]{1,127}/[A-Za-z0-9!#$&^_.+-]{1,127}"
    r"(?:[ \t]*;[ \t]*[A-Za-z0-9!#$&^_.+-]+=(?:[A-Za-z0-9!#$&^_.+-]+|\"[A-Za-z0-9!#$&^_.+ -]*\"))*",
    re.ASCII,
)


def _media_type(text: str) -> str:
    if MEDIA_TYPE.fullmatch(text) is None:
        raise ValueError(f"{text[:40]!r} is not a media type, such as image/png or text/plain; charset=utf-8")
    return text


def sendable_media_type(text: str | None) -> str:
    """The media type itself if a header can carry it, as those of long ago need not; else that of any bytes."""
    return text if text is not None and MEDIA_TYPE.fullmatch(text) else OCTETS


def _file_not_folder(name: str) -> str:
    if name in {".", ".."}:
        raise ValueError(f"{name!r} names a folder; a result is a file, such as result.safetensors")
    return name


MediaType = Annotated[str, StringConstraints(min_length=3, max_length=128), AfterValidator(_media_type)]
"""As in the header Content-Type (RFC 9110, section 8.3.1)."""
ArtifactName = Annotated[FileName, AfterValidator(_file_not_folder)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
ObjectSize = Annotated[int, Field(ge=1, le=2**40, description="In bytes.")]
ProcessId = Annotated[int, Field(ge=1, lt=2**31)]
UploadId = Annotated[str, StringConstraints(max_length=64)]


Prompt = Annotated[str, StringConstraints(min_length=1, max_length=2000)]
ModelName = Annotated[str, StringConstraints(min_length=1, max_length=512)]
