"""Which server a command talks to, and with which key."""

import json
from pathlib import Path

from giornata.cli.admin_key import admin_key_of
from giornata.cli.settings import Settings
from giornata.client import Client
from giornata.domain.errors import Unauthenticated, Unavailable

ADMIN_KEY_FILE = "admin.key"
SERVER_FILE = "server.json"


def connect(settings: Settings) -> Client:
    """A client for the server that the settings name, or for the embedded one on the data directory.

    Raises Unavailable when there is no server to be found, and Unauthenticated when there is no key.
    """
    return Client(server_url(settings), _key(settings))


def server_url(settings: Settings) -> str:
    """`GIORNATA_URL`, or where the embedded server says that it listens. Raises Unavailable."""
    if settings.url:
        return settings.url
    file = settings.data / SERVER_FILE
    try:
        return str(json.loads(file.read_text())["url"])
    except (OSError, ValueError, KeyError):
        raise Unavailable(f"no server runs on {settings.data}, and GIORNATA_URL is not set") from None


def _key(settings: Settings) -> str:
    if (given := settings.api_key or admin_key_of(settings)) is not None:
        return given
    file: Path = settings.data / ADMIN_KEY_FILE
    try:
        return file.read_text().strip()
    except OSError:
        raise Unauthenticated(f"there is no key: GIORNATA_API_KEY is not set, and {file} cannot be read") from None
