"""Uploads and downloads by signed URLs."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import httpx

from giornata.client.retry import Backoff
from giornata.client.storage import transfer
from giornata.protocol.uploads import Download, SignedPart, UploadTicket

# Few tries and short waits: the attempt itself goes on trying, and between tries asks whether it still makes sense.
BACKOFF = Backoff(retries=3, first_s=0.5, most_s=5.0)

Progress = Callable[[int], None]
"""Called with the bytes that were moved so far; what it raises ends the transfer."""

Renew = Callable[[list[int]], UploadTicket]
"""Asks for fresh URLs for the parts of these numbers; an empty list means the single PUT."""


class ObjectStorage(Protocol):
    """The object storage, as the agent uses it. Errors are those of `giornata.domain.errors`, or OSError."""

    def upload(self, path: Path, ticket: UploadTicket, *, renew: Renew, progress: Progress) -> tuple[str, ...]:
        """Send the file. Returns the ETags of its parts, in order."""

    def download(self, what: Download, path: Path, *, progress: Progress, part: Path | None = None) -> None:
        """Put the bytes at `path`, verified and complete, or raise. Bytes on their way are in `part`, if given, and
        stay there for the next call."""


class HttpStorage:
    """Storage over HTTP. `http` carries no credentials: the URLs are signed."""

    def __init__(self, http: httpx.Client, *, backoff: Backoff = BACKOFF) -> None:
        self._http, self._backoff = http, backoff

    def upload(self, path: Path, ticket: UploadTicket, *, renew: Renew, progress: Progress) -> tuple[str, ...]:
        """Send the file by HTTP, as ObjectStorage describes."""

        def renewed(numbers: list[int]) -> list[SignedPart]:
            fresh = renew(numbers)
            if fresh.put is None:
                return list(fresh.parts)
            return [SignedPart(number=1, size_bytes=path.stat().st_size, request=fresh.put)]

        return tuple(
            transfer.upload_file(self._http, path, ticket, renew=renewed, progress=progress, backoff=self._backoff)
        )

    def download(self, what: Download, path: Path, *, progress: Progress, part: Path | None = None) -> None:
        """Put the bytes at `path` by HTTP, as ObjectStorage describes."""
        transfer.download(
            self._http,
            what.request,
            path,
            sha256=what.sha256,
            size_bytes=what.size_bytes,
            progress=progress,
            backoff=self._backoff,
            part=part,
        )
