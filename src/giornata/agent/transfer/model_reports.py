"""Tell the server which model files the node has, and fetch ahead what it expects to be needed."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from giornata.agent.transfer.model_prefetch import ModelPrefetch
from giornata.agent.transfer.model_store import ModelStore
from giornata.protocol.node.held_models import (
    MOST_DAMAGED,
    MOST_HELD,
    HeldModels,
    HeldModelsLog,
    HeldTier,
    PrefetchHint,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReport:
    """The fields of a claim that tell which model files the node has. See `giornata.protocol.node.work.Claim`."""

    held_version: int | None = None
    held: HeldModels | None = None
    fetching: str | None = None
    fetching_left_s: float | None = None
    damaged: tuple[str, ...] = ()


class ModelReports:
    """Makes the reports of one node, and follows the hints that come back. Only the thread that claims uses it."""

    def __init__(self, store: ModelStore, prefetch: ModelPrefetch) -> None:
        self._store, self._prefetch = store, prefetch
        self._log = HeldModelsLog()
        self._known_version: int | None = None  # by the server
        self._fetching: str | None = None
        self._told_damaged: tuple[str, ...] = ()

    @property
    def is_fetching(self) -> bool:
        """True while a file is being fetched ahead."""
        return not self._prefetch.wait_idle(0)

    def report(self, host_files: Sequence[str] = ()) -> ModelReport:
        """Return what the node has now, as changes of what the server knows. `host_files` are the sha256 of files
        that the engine has in host memory."""
        # Asked first: a file that arrives meanwhile is told as fetched and as held.
        fetching = self._fetching if self.is_fetching else None
        self._log.replace(HeldTier.DISK, self._store.held()[:MOST_HELD])
        self._log.replace(HeldTier.HOST, host_files[:MOST_HELD])
        report = self._log.report(self._known_version)
        left_s = None if fetching is None else self._prefetch.left_s()
        self._told_damaged = self._store.damaged()[:MOST_DAMAGED]
        return ModelReport(
            held_version=self._log.version,
            held=report,
            fetching=fetching,
            fetching_left_s=left_s,
            damaged=self._told_damaged,
        )

    def answered(self, *, known_version: int | None, hint: PrefetchHint | None, verify: Sequence[str] = ()) -> None:
        """Note which version the server knows, begin to fetch what it names as a hint, and have the files `verify`
        read again before their next use."""
        self._known_version = known_version
        self._store.forget_damaged(self._told_damaged)
        if verify:
            log.warning("damaged on another node, read again before the next use: %s", ", ".join(verify))
            self._store.suspect(verify)
        if hint is not None:
            log.info("fetching %d files of the base %s ahead", len(hint.downloads), hint.base_key)
            self._fetching = hint.base_key
            self._prefetch.hint(hint.downloads)
