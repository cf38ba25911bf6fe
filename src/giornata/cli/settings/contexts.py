"""Servers that this user is logged in to, with their keys: one file that only its owner may read."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_serializer

from giornata.cli.settings.private_files import write_private
from giornata.domain.errors import Fault, InvalidInput

FILE = "contexts.json"
LOCAL = "local"
"""Names the installation on this machine, which needs no login."""


class SavedContext(BaseModel):
    """One server and the key for it. `key_id` is given for a key that a login made, which a logout ends."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    url: str
    api_key: SecretStr
    key_id: str | None = None

    @field_serializer("api_key", when_used="json")
    def _plain(self, api_key: SecretStr) -> str:
        return api_key.get_secret_value()


class Contexts(BaseModel):
    """All of them by name, and the one that commands use; None: the installation on this machine."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    current: str | None = None
    contexts: Mapping[str, SavedContext] = Field(default_factory=dict)

    @property
    def in_use(self) -> SavedContext | None:
        """The one that commands use."""
        return None if self.current is None else self.contexts.get(self.current)

    def key_for(self, url: str) -> str | None:
        """The key that was saved for exactly this server: no other server is sent it."""
        found = [each for each in self.contexts.values() if each.url == url.rstrip("/")]
        return found[0].api_key.get_secret_value() if found else None

    def named(self, name: str) -> SavedContext:
        """Return the context of this name. Raises InvalidInput with the existing names."""
        if name not in self.contexts:
            known = ", ".join(sorted({*self.contexts, LOCAL}))
            raise InvalidInput([Fault(where="NAME", message=f"there is no context {name}", hint=f"one of: {known}")])
        return self.contexts[name]


def contexts_file(environment: Mapping[str, str] = os.environ) -> Path:
    """Return `$XDG_CONFIG_HOME/giornata/contexts.json`; the folder defaults to `~/.config`."""
    home = environment.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "giornata" / FILE


def read_contexts(file: Path) -> Contexts:
    """Read the saved contexts; none when there is no file.

    Raises InvalidInput for a file that others may read, or that holds no contexts.
    """
    try:
        with file.open("rb") as opened:
            mode, content = stat.S_IMODE(os.fstat(opened.fileno()).st_mode), opened.read()
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        fault = Fault(where=str(file), message=f"cannot be read: {error.strerror}", hint="check its permissions")
        raise InvalidInput([fault]) from None
    if mode & 0o077:
        message = f"holds keys, and others may read it (mode {mode:04o})"
        raise InvalidInput([Fault(where=str(file), message=message, hint=f"chmod 600 {file}")])
    try:
        return Contexts.model_validate_json(content)
    except ValidationError:
        hint = "delete it, and log in again"
        raise InvalidInput([Fault(where=str(file), message="is not a file of contexts", hint=hint)]) from None


def write_contexts(file: Path, contexts: Contexts) -> None:
    """Whole or not at all, with mode 0600, in a folder of mode 0700. Raises InvalidInput."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(file, contexts.model_dump_json(indent=1) + "\n")
    except OSError as error:
        message = f"cannot be written: {error.strerror}"
        raise InvalidInput([Fault(where=str(file), message=message, hint="check the folder's permissions")]) from None
