"""Brings a model from the Hugging Face hub onto this machine, and says whose fault it is when that fails.

A name that the hub does not know is the job's fault (BAD_SPEC). Anything that keeps this machine from reaching
the hub, or from getting whole files, is not (NODE_DOWNLOAD): another machine may have more luck.
"""

import errno
import json
from pathlib import Path
from typing import Protocol

import huggingface_hub
from huggingface_hub.errors import (
    HFValidationError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

# The root of the errors of whichever HTTP library the hub's client uses; that has changed twice.
from huggingface_hub.errors import HTTPError as TransportError  # type: ignore[attr-defined]
from pydantic import SecretStr

from giornata.diffusion.families import family_of_index
from giornata.diffusion.hub_cache import HubCache
from giornata.domain.errors import Fault, WorkloadFailed
from giornata.domain.reasons import Reason
from giornata.protocol.training.model_names import HubFile

DISK_ERRORS = frozenset({errno.ENOSPC, errno.EROFS, errno.EIO, errno.EDQUOT})


class Hub(Protocol):
    """Where models come from. All raise what `huggingface_hub` raises."""

    def pipeline(self, name: str, *, revision: str | None, variant: str | None) -> Path:
        """The folder of a whole pipeline, downloaded unless it is here already."""

    def vae(self, name: str) -> Path:
        """The folder of a repository that holds an autoencoder, at its top or under vae/."""

    def file(self, name: str, file: str, *, revision: str | None) -> Path:
        """One file of a repository."""


class HuggingFaceHub:
    """The real hub, with its cache on disk. Fetches safetensors only: nothing from a network is unpickled.

    `token` opens gated models; without one, whatever this machine is logged in with does. After each fetch the cache
    is brought back within its bound; what was fetched stays at least until `close`.
    """

    def __init__(self, token: SecretStr | None = None, cache: HubCache | None = None) -> None:
        self._token, self._cache = token, cache or HubCache()

    def close(self) -> None:
        """What was fetched has been read."""
        self._cache.close()

    @property
    def _plain(self) -> str | None:
        return None if self._token is None else self._token.get_secret_value()

    def pipeline(self, name: str, *, revision: str | None, variant: str | None) -> Path:
        """As the protocol says. Looks at model_index.json first, so that a wrong model does not cost gigabytes."""
        self._cache.using(name)
        index = Path(huggingface_hub.hf_hub_download(name, "model_index.json", revision=revision, token=self._plain))
        family = family_of_index(json.loads(index.read_bytes()).get("_class_name"))
        if family is None:
            return index.parent
        options = {"revision": revision, "variant": variant, "use_safetensors": True, "token": self._plain}
        folder = Path(family.pipeline_class().download(name, **options, **family.download_options))
        self._cache.trim()
        return folder

    def vae(self, name: str) -> Path:
        """As the protocol says."""
        patterns = ["config.json", "*model.safetensors", "vae/config.json", "vae/*model.safetensors"]
        self._cache.using(name)
        folder = Path(huggingface_hub.snapshot_download(name, allow_patterns=patterns, token=self._plain))
        self._cache.trim()
        return folder

    def file(self, name: str, file: str, *, revision: str | None) -> Path:
        """As the protocol says."""
        self._cache.using(name)
        path = Path(huggingface_hub.hf_hub_download(name, file, revision=revision, token=self._plain))
        self._cache.trim()
        return path


def fetched_pipeline(hub: Hub, name: str, *, revision: str | None, variant: str | None, field: str) -> Path:
    """The folder of `name`, from the hub. Raises WorkloadFailed, BAD_SPEC or NODE_DOWNLOAD."""
    try:
        return hub.pipeline(name, revision=revision, variant=variant)
    except (OSError, TransportError, ValueError) as error:
        raise download_failed(name, revision, variant, field, error) from error


def fetched_vae(hub: Hub, name: str, *, field: str) -> Path:
    """As `fetched_pipeline`, for an autoencoder of its own."""
    try:
        return hub.vae(name)
    except (OSError, TransportError, ValueError) as error:
        raise download_failed(name, None, None, field, error) from error


def fetched_file(hub: Hub, file: HubFile, *, revision: str | None, field: str) -> Path:
    """As `fetched_pipeline`, for a single file."""
    try:
        return hub.file(file.repository, file.file, revision=revision)
    except RemoteEntryNotFoundError as error:
        hint = "check the spelling"
        fault = Fault(where=field, message=f"{file.repository} on the hub has no file {file.file}", hint=hint)
        raise WorkloadFailed(Reason.BAD_SPEC, str(fault), (fault,)) from error
    except (OSError, TransportError, ValueError) as error:
        raise download_failed(file.repository, revision, None, field, error) from error


def download_failed(
    name: str, revision: str | None, variant: str | None, field: str, error: Exception
) -> WorkloadFailed:
    """What an error of the hub's client means for the attempt."""
    what = f"{name}" + (f" at revision {revision}" if revision else "")
    hint = "check the spelling; for a private or gated model, name the secret with your token: hub_token_secret"
    if isinstance(error, RevisionNotFoundError):
        fault = Fault(where="spec.revision", message=f"{name} has no revision {revision}", hint=hint)
    elif isinstance(error, RepositoryNotFoundError):
        fault = Fault(where=field, message=f"the hub has no model {name} that can be read here", hint=hint)
    elif isinstance(error, RemoteEntryNotFoundError):
        fault = Fault(where=field, message=f"{what} on the hub is not in diffusers layout: {error}", hint=hint)
    elif isinstance(error, HFValidationError):
        fault = Fault(where=field, message=f"{name} is not a folder here, and cannot be a hub id either", hint=hint)
    elif isinstance(error, ValueError) and variant and variant in str(error):
        fault = Fault(where="spec.variant", message=f"{what} has no variant {variant}", hint="leave it out")
    else:
        if isinstance(error, OSError) and error.errno in DISK_ERRORS:
            return WorkloadFailed(Reason.NODE_DISK, f"{what} could not be kept on disk: {error}")
        return WorkloadFailed(Reason.NODE_DOWNLOAD, f"{what} could not be fetched from the hub: {error}")
    return WorkloadFailed(Reason.BAD_SPEC, str(fault), (fault,))
