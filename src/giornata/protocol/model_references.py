"""The ways to name a model file: a URL, a file or a repository on the hub, Civitai's URN, a training job, a name.

https://host/path/file.safetensors          a URL; one of the hub names a file there
owner/name:path/file.safetensors            a file on the hub, also as owner/name/path/file.safetensors
owner/name                                  a whole model in diffusers layout on the hub
urn:air:sdxl:lora:civitai:123@456           version 456 of Civitai's model 123
job_0123456789ab…, job_…@500                the LoRA of a job, or of its checkpoint after step 500
anything else                               a name of the project's registry
"""

import re
from dataclasses import dataclass
from enum import StrEnum

from giornata.domain.generation.model_kinds import ModelFamily
from giornata.protocol.training.model_names import HubFile, hub_file, is_hub_id, is_single_file, is_url


class ModelSource(StrEnum):
    """Where a model's bytes come from: an upload, a URL, the hub, Civitai, or a training job."""

    BLOB = "blob"
    URL = "url"
    HUB = "hub"
    CIVITAI = "civitai"
    JOB = "job"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStep:
    """The LoRA of a training job; of its checkpoint after `step`, if that is given."""

    job_id: str
    step: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CivitaiVersion:
    """A version of a model on Civitai, with the family that its URN names."""

    model_id: int
    version_id: int
    family: ModelFamily | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WebFile:
    """A file at a URL."""

    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HubRepository:
    """A whole model in diffusers layout on the hub. The engine loads it, as training does."""

    repository: str


ModelReference = WebFile | HubFile | HubRepository | CivitaiVersion | JobStep

JOB = re.compile(r"(job_[A-Za-z0-9_]{1,36})(?:@([0-9]{1,9}))?", re.ASCII)
URN = re.compile(r"(?:urn:)?air:([a-z0-9_.-]+):([a-z0-9_-]+):([a-z0-9_-]+):([0-9]{1,12})@([0-9]{1,12})", re.ASCII)
URN_FAMILIES = {"sdxl": ModelFamily.SDXL, "sd1": ModelFamily.SD15, "sd15": ModelFamily.SD15}
CIVITAI = "civitai"


def model_reference(text: str) -> ModelReference | None:
    """Return what the text stands for; None for a name of the registry.

    Raises ValueError for text that has the form of a reference and cannot be one.
    """
    if not text.isprintable():
        raise ValueError("holds characters that no name has")
    if text.lower().startswith(("urn:", "air:")):
        return _urn(text)
    if is_url(text):
        return hub_file(text) or _web_file(text)
    if (job := JOB.fullmatch(text)) is not None:
        return JobStep(job_id=job[1], step=None if job[2] is None else int(job[2]))
    repository, colon, file = text.partition(":")
    if colon and is_hub_id(repository) and "/" in repository and is_single_file(file):
        return _checked(HubFile(repository=repository, file=file))
    if (found := hub_file(text)) is not None:
        return _checked(found)
    return HubRepository(repository=text) if "/" in text and is_hub_id(text) else None


def source_of(reference: ModelReference) -> ModelSource:
    """Return the kind of source that holds the bytes."""
    match reference:
        case WebFile():
            return ModelSource.URL
        case HubFile() | HubRepository():
            return ModelSource.HUB
        case CivitaiVersion():
            return ModelSource.CIVITAI
        case JobStep():
            return ModelSource.JOB


def _web_file(text: str) -> WebFile:
    if not text.startswith(("https://", "http://")):
        raise ValueError("is not a URL that begins with https://")
    return WebFile(url=text)


def _checked(file: HubFile) -> HubFile:
    if not is_hub_id(file.repository) or ".." in file.file.split("/") or file.file.startswith("/"):
        raise ValueError("does not name a file on the hub: owner/name:path/file.safetensors")
    return file


def _urn(text: str) -> CivitaiVersion:
    found = URN.fullmatch(text.lower())
    if found is None or found[3] != CIVITAI:
        raise ValueError("is not a URN of Civitai with a version, such as urn:air:sdxl:lora:civitai:123@456")
    return CivitaiVersion(
        model_id=int(found[4]),
        version_id=int(found[5]),
        family=URN_FAMILIES.get(found[1]),
    )
