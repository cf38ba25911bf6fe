"""Fetches model files that the server expects to be needed, one at a time, while the node works."""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from giornata.agent.transfer.model_store import FetchModel, ModelStore, Progress
from giornata.agent.transfer.transport import ObjectStorage
from giornata.domain.errors import GiornataError
from giornata.protocol.uploads import Download

log = logging.getLogger(__name__)

NICENESS = 10


def fetch_from(storage: ObjectStorage) -> FetchModel:
    """Return the function that fetches a model file from the storage, behind the bytes that have come before."""

    def fetch(what: Download, part: Path, target: Path, progress: Progress) -> None:
        storage.download(what, target, progress=progress, part=part)

    return fetch


class PrefetchStopped(Exception):
    """The hint is withdrawn, or the node ends."""


class ModelPrefetch:
    """A thread of low priority that follows the server's latest hints. A failed fetch costs nothing but its bytes."""

    def __init__(
        self, store: ModelStore, fetch: FetchModel, *, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._fetch, self._monotonic_s = store, fetch, monotonic_s
        self._changed = threading.Condition()
        self._wanted: tuple[Download, ...] = ()
        self._hinted: frozenset[str] = frozenset()  # also while it is being fetched
        self._current: Download | None = None
        self._first: tuple[float, int] | None = None  # when bytes of the present file were first told, and how many
        self._latest: tuple[float, int] | None = None
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)

    def start(self) -> None:
        """Start the thread that fetches."""
        self._thread.start()

    def stop(self, *, wait_s: float) -> None:
        """End the present fetch, whose bytes stay for the next one, and the thread."""
        with self._changed:
            self._is_stopped, self._wanted, self._hinted = True, (), frozenset()
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(wait_s)

    def hint(self, downloads: Sequence[Download]) -> None:
        """Put these files, in this order, in the place of all earlier hints. A fetch of another file ends."""
        with self._changed:
            current = None if self._current is None else self._current.sha256
            self._wanted = tuple(each for each in downloads if each.sha256 != current)
            self._hinted = frozenset(each.sha256 for each in downloads)
            self._changed.notify_all()

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no hint is left. False when that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._wanted and self._current is None, timeout_s)

    def left_s(self) -> float | None:
        """Return the seconds until all hinted files are here, at the rate of the present one.

        None when nothing is fetched, or its rate is not known yet.
        """
        with self._changed:
            if self._current is None or self._first is None or self._latest is None:
                return None
            (began_s, first_bytes), (latest_s, latest_bytes) = self._first, self._latest
            if latest_s <= began_s or latest_bytes <= first_bytes:
                return None
            left_bytes = self._current.size_bytes - latest_bytes + sum(each.size_bytes for each in self._wanted)
            return max(0, left_bytes) * (latest_s - began_s) / (latest_bytes - first_bytes)

    def _observed(self, what: Download, part: Path, target: Path, progress: Progress) -> None:
        def told(arrived_bytes: int) -> None:
            self._latest = (self._monotonic_s(), arrived_bytes)
            self._first = self._first or self._latest
            progress(arrived_bytes)

        self._fetch(what, part, target, told)

    def _run(self) -> None:
        with suppress(OSError, AttributeError):  # a platform without priorities of threads
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while (what := self._next()) is not None:
            try:
                self._store.prefetch(what, self._observed, check=self._check)
            except PrefetchStopped:
                log.info("prefetch of %s ended: it is not expected any more", what.sha256)
            except (GiornataError, OSError) as error:
                log.warning("prefetch of %s: %s", what.sha256, error)
            with self._changed:
                self._current = None
                self._changed.notify_all()

    def _next(self) -> Download | None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopped or bool(self._wanted))
            if self._is_stopped:
                return None
            self._current, self._wanted = self._wanted[0], self._wanted[1:]
            self._first = self._latest = None
            return self._current

    def _check(self) -> None:
        if self._current is None or self._current.sha256 not in self._hinted:
            raise PrefetchStopped
