"""The quotas of projects as one server process remembers them, so that no request asks the database for them."""

import threading
from collections.abc import Mapping

from giornata.domain.billing.quotas import Quotas

KEPT_MS = 4_000
"""Milliseconds for which another server may apply earlier quotas; the server that set them applies them at once."""
PICTURE_BYTES_MS = 60_000
MOST_PROJECTS = 4096


class QuotaMemory:
    """Remembers quotas and sums for seconds; may be used from any thread. Instants are epoch milliseconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._quotas: dict[str, tuple[Quotas, int]] = {}
        self._ceilings: tuple[Mapping[str, int], int] | None = None
        self._picture_bytes: dict[str, tuple[int, int]] = {}

    def of_project(self, project_id: str, *, at_ms: int) -> Quotas | None:
        """Return the project's quotas as they were read a moment ago."""
        found = self._quotas.get(project_id)
        return found[0] if found is not None and 0 <= at_ms - found[1] < KEPT_MS else None

    def remember(self, project_id: str, quotas: Quotas, *, at_ms: int) -> None:
        """Remember what was just read of a project's quotas."""
        with self._lock:
            if len(self._quotas) >= MOST_PROJECTS:
                self._quotas.clear()
            self._quotas[project_id] = quotas, at_ms

    def ceilings(self, *, at_ms: int) -> Mapping[str, int] | None:
        """Return how many jobs may run at a time, of each project with such a limit, as it was read a moment ago."""
        found = self._ceilings
        return found[0] if found is not None and 0 <= at_ms - found[1] < KEPT_MS else None

    def remember_ceilings(self, ceilings: Mapping[str, int], *, at_ms: int) -> None:
        """Remember the limits of running jobs that were just read."""
        self._ceilings = ceilings, at_ms

    def forget(self) -> None:
        """Forget all quotas, because some were set here."""
        with self._lock:
            self._quotas.clear()
            self._ceilings = None

    def picture_bytes(self, project_id: str, *, at_ms: int) -> int | None:
        """Return the bytes of a project's pictures, if they were added up less than a minute ago."""
        found = self._picture_bytes.get(project_id)
        return found[0] if found is not None and 0 <= at_ms - found[1] < PICTURE_BYTES_MS else None

    def remember_picture_bytes(self, project_id: str, size_bytes: int, *, at_ms: int) -> None:
        """Remember the bytes of a project's pictures."""
        with self._lock:
            if len(self._picture_bytes) >= MOST_PROJECTS:
                self._picture_bytes.clear()
            self._picture_bytes[project_id] = size_bytes, at_ms
