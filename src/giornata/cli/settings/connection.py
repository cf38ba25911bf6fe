"""Choose the server for a command, and the key for the server.

Flags win over the environment and the settings file, those over the context of `giornata login`, and that over the
installation on this machine. A data directory that was named means the installation there.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from giornata.cli.settings import Settings, admin_key_of
from giornata.cli.settings.contexts import Contexts, contexts_file, read_contexts
from giornata.cli.settings.hints import giornata, given, note_local
from giornata.client.retry import Backoff
from giornata.domain.errors import Fault, InvalidInput, Unauthenticated, Unavailable

if TYPE_CHECKING:
    from giornata.client import Client

ADMIN_KEY_FILE = "admin.key"
SERVER_FILE = "server.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server, a key for it, and whether it is the installation on this machine."""

    url: str
    api_key: str
    local: bool


def connect(settings: Settings, *, http: httpx.Client | None = None, backoff: Backoff | None = None) -> "Client":
    """A client for the server that `target_of` finds. Raises as it does."""
    target = target_of(settings)
    note_local(target.local)
    from giornata.client import Client

    return Client(target.url, target.api_key, http=http, backoff=backoff)


def target_of(settings: Settings, contexts: Callable[[], Contexts] | None = None) -> Target:
    """The server that the flags, the settings or the contexts name, or the one on the data directory. `contexts`
    reads the user's file, which is left alone when it cannot matter.

    Raises Unavailable when there is no server to be found, and Unauthenticated when there is no key.
    """
    read = contexts or partial(read_contexts, contexts_file())
    if settings.url and not _means_data():
        key = settings.api_key or read().key_for(settings.url) or _local_key(settings)
        return Target(url=settings.url, api_key=key, local=False)
    if "data" not in settings.model_fields_set and (saved := read().in_use) is not None:
        key = settings.api_key or saved.api_key.get_secret_value()
        return Target(url=saved.url, api_key=key, local=False)
    return Target(url=_local_url(settings), api_key=settings.api_key or _local_key(settings), local=True)


def _means_data() -> bool:
    """Return True when the command line names a data directory and no URL: a URL of the environment is ignored."""
    flags = given()
    return "data" in flags and "url" not in flags


def _local_url(settings: Settings) -> str:
    """Return the URL at which the embedded server says that it listens. Raises Unavailable."""
    file = settings.data / SERVER_FILE
    try:
        return str(json.loads(file.read_text())["url"])
    except (OSError, ValueError, KeyError):
        hint = f"Start one: {giornata('up')}. Or use one elsewhere: giornata login URL"
        raise Unavailable(f"no server runs on {settings.data}", hint=hint) from None


def _local_key(settings: Settings) -> str:
    if (given := admin_key_of(settings)) is not None:
        return given
    file: Path = settings.data / ADMIN_KEY_FILE
    try:
        return file.read_text().strip()
    except OSError as error:
        why = f"{file} cannot be read ({error.strerror})"
        hint = "Log in to the server with: giornata login URL. Or set GIORNATA_API_KEY."
        raise Unauthenticated(f"there is no key: GIORNATA_API_KEY is not set, and {why}", hint=hint) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """The server's URL and a key of scope node. The key stands behind a `#`, which no request carries."""

    url: str
    key: str

    def __str__(self) -> str:
        return f"{self.url}#{self.key}"


def read_invitation(text: str) -> Invitation:
    """Parse an invitation from its text. Raises InvalidInput."""
    url, _, key = text.partition("#")
    if not url.startswith(("http://", "https://")) or not key:
        hint = "giornata key create --scope node prints it"
        raise InvalidInput([Fault(where="--join", message="is not https://SERVER#KEY", hint=hint)])
    return Invitation(url=url, key=key)
