"""Brings a model from the Hugging Face hub onto this machine, and attributes each failure to the job or the node.

A name that the hub does not know is the job's fault (BAD_SPEC). Anything that keeps this machine from reaching
the hub, or from getting whole files, is not (NODE_DOWNLOAD): another machine may have more luck.
"""

import errno
import fcntl
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Protocol

import huggingface_hub
from huggingface_hub import CachedRepoInfo, CacheNotFound, HFCacheInfo, scan_cache_dir
from huggingface_hub.constants import HF_HUB_CACHE
from huggingface_hub.errors import (
    HFValidationError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.errors import HTTPError as TransportError  # type: ignore[attr-defined]
from pydantic import SecretStr

from giornata.diffusion.families import family_of_index
from giornata.domain.errors import Fault, WorkloadFailed
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.training.model_names import HubFile

# ---- the cache of this machine, within a bound: the least recently used repositories go first
#
# Only repositories that a node brought here are counted and removed. Each has a mark beside the cache, whose time is
# that of its last use; what was there before (a user's own models in the same cache) has none and is never touched.
# A mark is locked while the repository is read, so no engine removes what another is just loading. The cache is
# read and changed by huggingface_hub's own tools.

MARKS = ".giornata"


@dataclass(slots=True, kw_only=True)
class HubCache:
    """The cache in `directory`. `bound_bytes` None: no bound. Close it when what was fetched has been read."""

    directory: Path = Path(HF_HUB_CACHE)
    bound_bytes: int | None = None
    _held: dict[str, IO[bytes]] = field(default_factory=dict)

    def using(self, repository: str) -> None:
        """Mark a repository, before it is fetched, as in use: no process removes it until `close`."""
        mark = self._mark(repository)
        if repository in self._held or (self._folder(repository).exists() and not mark.exists()):
            return
        mark.parent.mkdir(parents=True, exist_ok=True)
        file = mark.open("ab")
        fcntl.flock(file, fcntl.LOCK_SH)
        mark.touch()
        self._held[repository] = file

    def trim(self) -> list[str]:
        """Remove the repositories used longest ago until the rest is within the bound; return the removed names.
        Repositories in use stay, here or in another process, even if the bound is exceeded."""
        if self.bound_bytes is None:
            return []
        try:
            found = scan_cache_dir(self.directory)
        except CacheNotFound:
            return []
        ours = [repo for repo in found.repos if repo.repo_type == "model" and self._mark(repo.repo_id).exists()]
        ours.sort(key=lambda repo: self._mark(repo.repo_id).stat().st_mtime_ns)
        size_bytes, gone = sum(repo.size_on_disk for repo in ours), []
        for repo in ours:
            if size_bytes <= self.bound_bytes:
                break
            if self._remove(found, repo):
                size_bytes -= repo.size_on_disk
                gone.append(repo.repo_id)
        return gone

    def close(self) -> None:
        """Release the repositories in use, so that a trim may delete them."""
        while self._held:
            self._held.popitem()[1].close()

    def _remove(self, found: HFCacheInfo, repo: CachedRepoInfo) -> bool:
        if repo.repo_id in self._held:
            return False
        mark = self._mark(repo.repo_id)
        with _alone(mark) as mine:
            if mine:
                # Copies of a repository have the same commits: of this one alone they are to go.
                alone = replace(found, repos=frozenset({repo}))
                alone.delete_revisions(*(revision.commit_hash for revision in repo.revisions)).execute()
                mark.unlink(missing_ok=True)
            return mine

    def _folder(self, repository: str) -> Path:
        return self.directory / f"models--{repository.replace('/', '--')}"

    def _mark(self, repository: str) -> Path:
        return self.directory / MARKS / self._folder(repository).name


@contextmanager
def _alone(mark: Path) -> Iterator[bool]:
    """Yield True when no other process holds the mark; no other can take it inside the context."""
    with mark.open("ab") as file:
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield True
            return
        yield False


DISK_ERRORS = frozenset({errno.ENOSPC, errno.EROFS, errno.EIO, errno.EDQUOT})


class ModelHub(Protocol):
    """A source of base models. All methods raise what `huggingface_hub` raises."""

    def pipeline(self, name: str, *, revision: str | None, variant: str | None) -> Path:
        """Return the folder of a whole pipeline, downloaded unless it is here already."""

    def vae(self, name: str) -> Path:
        """Return the folder of a repository that holds an autoencoder, at its top or under vae/."""

    def file(self, name: str, file: str, *, revision: str | None) -> Path:
        """Return one file of a repository."""


class HuggingFaceHub:
    """The real hub, with its cache on disk. Fetches safetensors only: nothing from a network is unpickled.

    `token` opens gated models; without one, whatever this machine is logged in with does. After each fetch the cache
    is brought back within its bound; what was fetched stays at least until `close`.
    """

    def __init__(self, token: SecretStr | None = None, cache: HubCache | None = None) -> None:
        self._token, self._cache = token, cache or HubCache()

    def close(self) -> None:
        """Release the fetched files in the cache, because the caller has read them."""
        self._cache.close()

    @property
    def _plain(self) -> str | None:
        return None if self._token is None else self._token.get_secret_value()

    def pipeline(self, name: str, *, revision: str | None, variant: str | None) -> Path:
        """Return the pipeline's folder, as `ModelHub.pipeline` describes. Looks at model_index.json first, so that a
        wrong model does not cost gigabytes."""
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
        """Return the autoencoder's folder, as `ModelHub.vae` describes."""
        patterns = ["config.json", "*model.safetensors", "vae/config.json", "vae/*model.safetensors"]
        self._cache.using(name)
        folder = Path(huggingface_hub.snapshot_download(name, allow_patterns=patterns, token=self._plain))
        self._cache.trim()
        return folder

    def file(self, name: str, file: str, *, revision: str | None) -> Path:
        """Return one fetched file, as `ModelHub.file` describes."""
        self._cache.using(name)
        path = Path(huggingface_hub.hf_hub_download(name, file, revision=revision, token=self._plain))
        self._cache.trim()
        return path


def fetched_pipeline(hub: ModelHub, name: str, *, revision: str | None, variant: str | None, field: str) -> Path:
    """Return the folder of `name`, from the hub. Raises WorkloadFailed, BAD_SPEC or NODE_DOWNLOAD."""
    try:
        return hub.pipeline(name, revision=revision, variant=variant)
    except (OSError, TransportError, ValueError) as error:
        raise download_failed(name, revision, variant, field, error) from error


def fetched_vae(hub: ModelHub, name: str, *, field: str) -> Path:
    """Return the folder of an autoencoder of its own, with the errors of `fetched_pipeline`."""
    try:
        return hub.vae(name)
    except (OSError, TransportError, ValueError) as error:
        raise download_failed(name, None, None, field, error) from error


def fetched_file(hub: ModelHub, file: HubFile, *, revision: str | None, field: str) -> Path:
    """Return the path of a single file, with the errors of `fetched_pipeline`."""
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
    """Return the failure that an error of the hub's client means for the attempt."""
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


# ---- arrival: the hub's client says nothing while gigabytes come in

LOOK_EVERY_S = 5.0
BLOCK_BYTES = 512  # POSIX: st_blocks counts these, whatever the file system's own are


class Arrival:
    """The bytes that have arrived in some directories, counted as disk blocks: the client makes some files full size
    at once."""

    def __init__(self, *directories: Path) -> None:
        self._directories = directories
        self._bytes = self._count()

    def moved(self) -> bool:
        """Return True when bytes have arrived, or gone, since the last call."""
        before, self._bytes = self._bytes, self._count()
        return before != self._bytes

    def _count(self) -> int:
        # os.walk passes over folders that go while it looks, as the client's temporary ones do; Path.rglob raises.
        walks = (os.walk(directory) for directory in self._directories)
        return sum(_bytes_at(Path(folder, name)) for walk in walks for folder, _, names in walk for name in names)


@contextmanager
def arriving(cache: Path, told: Callable[[], None], *, every_s: float = LOOK_EVERY_S) -> Iterator[None]:
    """Within, `told` is called from a thread whenever the hub's cache has changed in the last seconds: in it, or in
    the chunks beside it that newer clients put files together from."""
    arrival, over = Arrival(cache, cache.parent / "xet"), threading.Event()

    def look() -> None:
        with suppress(OSError):  # the agent is gone, and the engine goes too
            while not over.wait(every_s):
                if arrival.moved():
                    told()

    watching = threading.Thread(target=look, name="hub-arrival", daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()


def _bytes_at(path: Path) -> int:
    try:
        return path.lstat().st_blocks * BLOCK_BYTES
    except OSError:
        return 0  # renamed or removed meanwhile
