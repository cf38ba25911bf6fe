"""Civitai's public API: what a version of a model is, and where its file lies."""

import json
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from giornata.control.ports.model_registry import RemoteModel
from giornata.domain.errors import Fault, InvalidInput, Unavailable
from giornata.domain.generation.model_kinds import FAMILIES_HERE, ModelFamily
from giornata.model_sources.web_file import WebReader
from giornata.protocol.model_references import CivitaiVersion

CIVITAI_URL = "https://civitai.com"
MOST_REPLY_BYTES = 4 * 2**20
FAMILY_PREFIXES = {
    "SDXL": ModelFamily.SDXL,
    "Pony": ModelFamily.SDXL,
    "Illustrious": ModelFamily.SDXL,
    "NoobAI": ModelFamily.SDXL,
    "SD 1.": ModelFamily.SD15,
}
"""Families by how Civitai's `baseModel` begins. Pony, Illustrious and NoobAI are fine-tunes of SDXL."""


class _Listed(BaseModel):
    """An object of the API. The fields that are not named here are of no use."""

    model_config = ConfigDict(extra="ignore", populate_by_name=True)


class _ListedMetadata(_Listed):
    format: str | None = None


class _ListedHashes(_Listed):
    sha256: str | None = Field(None, alias="SHA256", pattern=r"^[0-9A-Fa-f]{64}$")


class _ListedFile(_Listed):
    name: str
    primary: bool = False
    type: str = "Model"
    metadata: _ListedMetadata = Field(default_factory=_ListedMetadata)
    hashes: _ListedHashes = Field(default_factory=_ListedHashes)
    download_url: str | None = Field(None, alias="downloadUrl")


class _ListedVersion(_Listed):
    id: int
    model_id: int | None = Field(None, alias="modelId")
    base_model: str = Field("", alias="baseModel")
    files: tuple[_ListedFile, ...] = ()


def find_version(
    reader: WebReader, version: CivitaiVersion, *, base_url: str, token: str | None, where: str
) -> RemoteModel:
    """Return the .safetensors file of a version. Raises InvalidInput, Unavailable."""
    url = f"{base_url}/api/v1/model-versions/{version.version_id}"
    listed = _listed(_json(reader, url, token=token, where=where))
    if listed.model_id not in {None, version.model_id}:
        message = f"version {listed.id} is of Civitai's model {listed.model_id}, not {version.model_id}"
        raise InvalidInput([Fault(where=where, message=message, hint="copy the URN from the page of the version")])
    family = next((each for begins, each in FAMILY_PREFIXES.items() if listed.base_model.startswith(begins)), None)
    if family is None and listed.base_model not in {"", "Other"}:
        message = f"is made for {listed.base_model}"
        raise InvalidInput([Fault(where=where, message=message, hint=f"only {FAMILIES_HERE} models can be used")])
    file = _weights(listed, where=where)
    return RemoteModel(
        name=file.name,
        url=file.download_url or f"{base_url}/api/download/models/{listed.id}",
        sha256=None if file.hashes.sha256 is None else file.hashes.sha256.lower(),
        family=family or version.family,
    )


def _weights(listed: _ListedVersion, *, where: str) -> _ListedFile:
    usable = [
        each
        for each in listed.files
        if each.metadata.format == "SafeTensor" or each.name.lower().endswith(".safetensors")
    ]
    if not usable:
        names = ", ".join(each.name for each in listed.files) or "no files"
        message = f"version {listed.id} on Civitai has no .safetensors file, but {names}"
        raise InvalidInput([Fault(where=where, message=message, hint="choose a version that has one")])
    return max(usable, key=lambda each: (each.primary, each.type == "Model"))


def _listed(content: Any) -> _ListedVersion:
    try:
        return _ListedVersion.model_validate(content)
    except ValidationError as error:
        fields = ", ".join(".".join(map(str, fault["loc"])) for fault in error.errors())
        raise Unavailable(f"Civitai's answer is not the one of its documentation: {fields}") from error


def _json(reader: WebReader, url: str, *, token: str | None, where: str) -> Any:
    content = b""
    for chunk in reader.chunks(url, token=token, where=where):
        content += chunk
        if len(content) > MOST_REPLY_BYTES:
            raise Unavailable(f"Civitai's answer is longer than {MOST_REPLY_BYTES} bytes")
    try:
        return json.loads(content)
    except ValueError as error:
        raise Unavailable("Civitai's answer is not JSON") from error
