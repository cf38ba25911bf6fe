"""Names of base models: a repository on the hub, one of its files, or a path on the node."""

import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?"
HUB_ID = re.compile(rf"(?:{_PART}/)?{_PART}", re.ASCII)
"""As the hub's own client checks it."""
SINGLE_FILE_SUFFIX = ".safetensors"
HUB_HOSTS = frozenset({"huggingface.co", "www.huggingface.co", "hf.co"})


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFile:
    """One file of a repository on the hub. `revision` is None where the name gives none."""

    repository: str
    file: str
    revision: str | None = None


def is_single_file(name: str) -> bool:
    """Return True when the name is that of one file rather than of a folder or repository."""
    return _without_query(name).lower().endswith(SINGLE_FILE_SUFFIX)


def is_url(name: str) -> bool:
    """Return True when the name is a URL of any kind."""
    return "://" in name


def looks_like_path(name: str) -> bool:
    """Return True when a name cannot be a hub id: ids are `name` or `owner/name`, starting with a letter or digit."""
    return name.startswith(("/", ".", "~")) or name.count("/") > 1 or "\\" in name


def has_clip_vocabulary(name: str) -> bool:
    """Return True when a model of this name can only have CLIP's own vocabulary.

    Such a model is on the hub, or one file, whose text is read with the vocabulary of this package. A folder may have
    a tokenizer of its own.
    """
    return is_single_file(name) or not (looks_like_path(name) or is_url(name))


def is_hub_id(name: str) -> bool:
    """Return True when the hub could have a repository of this name."""
    return HUB_ID.fullmatch(name) is not None and "--" not in name and ".." not in name


def may_be_registered(name: str) -> bool:
    """Return True for a name under which a project's registry may have the base of a training job: a name without an
    owner, or a file on the hub. Other names are those of repositories and paths."""
    if "/" in name and SINGLE_FILE_SUFFIX not in name.lower():
        return False
    return hub_file(name) is not None or (is_hub_id(name) and "/" not in name and not is_single_file(name))


def hub_file(name: str) -> HubFile | None:
    """The file that `owner/name/file.safetensors` or `https://huggingface.co/owner/name/resolve/REVISION/file`
    stands for; None for whatever is not a file on the hub."""
    if not is_single_file(name):
        return None
    if is_url(name):
        return _of_url(name)
    if name.startswith(("/", ".", "~")) or "\\" in name:
        return None
    owner, _, rest = name.partition("/")
    repository, _, file = rest.partition("/")
    return HubFile(repository=f"{owner}/{repository}", file=file) if owner and repository and file else None


def _of_url(name: str) -> HubFile | None:
    url = urlsplit(name)
    parts = [unquote(part) for part in url.path.strip("/").split("/")]
    if url.scheme != "https" or url.netloc not in HUB_HOSTS or len(parts) < 5 or parts[2] not in {"blob", "resolve"}:
        return None
    if not all(parts) or ".." in parts:
        return None
    return HubFile(repository="/".join(parts[:2]), file="/".join(parts[4:]), revision=parts[3])


def _without_query(name: str) -> str:
    return name.partition("?")[0] if is_url(name) else name
