"""Base models that cannot be had, found out before a job is sent."""

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from giornata.domain.errors import Fault
from giornata.protocol.training.model_names import hub_file, is_hub_id, is_single_file, is_url, looks_like_path

FIELDS = {
    "--model": ("pretrained_model_name_or_path", "model"),
    "--set vae": ("pretrained_vae_model_name_or_path", "vae"),
}
KNOWN = (
    "stabilityai/stable-diffusion-xl-base-1.0",
    "stable-diffusion-v1-5/stable-diffusion-v1-5",
    "madebyollin/sdxl-vae-fp16-fix",
)
HUB = "https://huggingface.co"
TIMEOUT = httpx.Timeout(4.0, connect=2.0)
SKIP = "HF_HUB_OFFLINE=1 sends the job without asking the hub"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub:
    """The model hub, as the environment of this machine names it. `http` has no key of ours."""

    environment: Mapping[str, str]
    http: httpx.Client

    def fault(self, repository: str, revision: str | None) -> tuple[str, str] | None:
        """(message, hint) for a repository that the hub does not know; None when it does, or cannot be asked."""
        if self._is_offline() or self._is_cached(repository):
            return None
        url = f"{self.environment.get('HF_ENDPOINT') or HUB}/api/models/{repository}"
        token = self.environment.get("HF_TOKEN") or self._saved_token()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            answer = self.http.get(url + (f"/revision/{revision}" if revision else ""), headers=headers)
        except httpx.RequestError:
            return None
        code = answer.headers.get("x-error-code", "")
        if code == "RevisionNotFound":
            return (
                f"{repository} on the hub has no revision {revision}",
                "leave the revision out, or check its spelling",
            )
        if code == "RepoNotFound" or (answer.status_code == httpx.codes.UNAUTHORIZED and not token):
            near = difflib.get_close_matches(repository, KNOWN, n=1)
            meant = f"did you mean {near[0]}? " if near else "check the spelling; "
            private = "a private model needs --set hub_token_secret=NAME"
            return f"the hub has no model {repository}", f"{meant}{private}; {SKIP}"
        return None

    def _is_offline(self) -> bool:
        return self.environment.get("HF_HUB_OFFLINE", "").lower() in {"1", "true", "yes", "on"}

    def _home(self) -> Path:
        cache = Path(self.environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return Path(self.environment.get("HF_HOME") or cache / "huggingface").expanduser()

    def _is_cached(self, repository: str) -> bool:
        cache = Path(self.environment.get("HF_HUB_CACHE") or self._home() / "hub").expanduser()
        return (cache / f"models--{repository.replace('/', '--')}" / "snapshots").is_dir()

    def _saved_token(self) -> str | None:
        try:
            return (self._home() / "token").read_text().strip() or None
        except (OSError, UnicodeDecodeError):
            return None


def sent_name(name: str) -> str:
    """A folder's or a file's absolute path: nodes have another working directory. Anything else is left as it is."""
    path = Path(name)
    return str(path.resolve()) if path.is_dir() or (is_single_file(name) and path.is_file()) else name


def model_faults(spec: Mapping[str, Any], *, hub: Hub, shares_files: Callable[[], bool]) -> Iterator[Fault]:
    """A fault for each model that no node will find. `shares_files` says whether nodes see this machine's files.

    What cannot be known here is left to the node: a path on another machine, and the hub when it does not answer or
    when a secret of the project opens it.
    """
    for option, fields in FIELDS.items():
        name = next((spec[field] for field in fields if isinstance(spec.get(field), str)), None)
        if name is None or is_url(name):
            continue
        if (said := _path_fault(name, shares_files)) is not None:
            yield Fault(where=option, message=said[0], hint=said[1])
        elif (repository := _repository(name)) is not None and not spec.get("hub_token_secret"):
            revision = spec.get("revision") if option == "--model" else None
            found = hub.fault(repository, revision if isinstance(revision, str) else None)
            if found is not None:
                yield Fault(where=option, message=found[0], hint=found[1])


def _repository(name: str) -> str | None:
    """The one on the hub that the name stands for; None for a path, and for what can be no name there."""
    if Path(name).exists():
        return None
    file = hub_file(name)
    if file is not None:
        return file.repository
    return None if looks_like_path(name) or not is_hub_id(name) else name


def _path_fault(name: str, shares_files: Callable[[], bool]) -> tuple[str, str] | None:
    path = Path(name)
    if path.is_file() and not is_single_file(name):
        return f"{name} is not a .safetensors file", "give a .safetensors file, a folder, or a hub id"
    if path.exists():
        return None
    if hub_file(name) is not None or not looks_like_path(name):
        return None
    if name.startswith("~") or not path.is_absolute():
        message = f"{name} does not exist here, and nodes have another working directory"
        return message, "give a folder that exists, its absolute path on the nodes, or a hub id"
    if shares_files():
        return f"{name} does not exist on this machine", "give a folder that exists, or a hub id"
    return None
