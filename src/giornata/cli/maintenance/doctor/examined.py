"""The parts of an installation that the checks look at."""

import json
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from giornata.blobs.opening import folder_of
from giornata.cli.settings.connection import SERVER_FILE
from giornata.control.ports.clock import Clock

if TYPE_CHECKING:
    from giornata.blobs.s3 import S3Credentials

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorLimits:
    """The bounds beyond which something is a finding."""

    skew_s: float = 5.0
    low_disk_bytes: int = 5 * GIB
    full_disk_bytes: int = GIB // 2
    certificate_days: float = 21.0
    nobody_for_s: float = 900.0
    timeout_s: float = 10.0
    unchained_s: float = 120.0
    outbox_s: float = 300.0
    excused_audits: int = 5
    audits_of_s: float = 7 * 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminedInstallation:
    """An installation as its settings name it. `servers` are addresses that were given besides."""

    data: Path
    database: str
    blobs: str
    public_url: str | None
    has_fleets: bool
    http: httpx.Client
    tls: ssl.SSLContext
    clock: Clock
    max_connections: int
    max_connections_per_project: int
    servers: Sequence[str] = ()
    s3_credentials: "S3Credentials | None" = None
    limits: DoctorLimits = DoctorLimits()

    def folders(self) -> tuple[Path, ...]:
        """Return the folders of data and of objects that are on this machine."""
        blobs = folder_of(self.blobs)
        return tuple(each for each in (self.data, blobs) if each is not None and each.is_dir())

    def own_server(self) -> str | None:
        """Return the address of the server that says that it runs on the data folder."""
        found = self._server_file().get("url")
        return None if found is None else str(found)

    def own_process(self) -> int | None:
        """Return the process of that server."""
        found = self._server_file().get("pid")
        return found if isinstance(found, int) else None

    def _server_file(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self.data / SERVER_FILE).read_text()))
        except (OSError, ValueError, TypeError):
            return {}

    def addresses(self) -> tuple[str, ...]:
        """Return the addresses of all servers that are known."""
        known = (self.own_server(), *self.servers, self.public_url)
        return tuple(dict.fromkeys(each.rstrip("/") for each in known if each))
