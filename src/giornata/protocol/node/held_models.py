"""The model files that a node holds, and in which tier, as a report that tells only changes.

A node keeps a `HeldModelsLog`. The server keeps the tiers of the last report, and `merged` brings them up to date. A
report whose `since` is not the server's version says nothing: the server then asks for a whole one. What the server
knows is a hint, and a stale hint costs a load.
"""

import threading
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from giornata.protocol.model import Count, Message, Reply, Sha256
from giornata.protocol.uploads import Download

MOST_HELD = 10_000
"""Files of one tier in one report."""
MOST_DAMAGED = 64
"""Files in one report of damage; the rest comes with the next claim."""
MOST_CHANGES = 1000
"""Changes that a node remembers; a server that has missed more is told everything."""

HeldNames = Annotated[tuple[Sha256, ...], Field(max_length=MOST_HELD)]


class HeldTier(StrEnum):
    """A place from which a file is loaded. `Claim.held_models` tells the bases in GPU memory, by their keys."""

    DISK = "disk"
    HOST = "host"


HeldTiers = Mapping[HeldTier, frozenset[str]]
"""The sha256 of every held file, by tier. A file may be in several."""


class HeldModels(Message):
    """A change from version `since` to `version`; without `since` everything that the node holds.

    `added` and `removed` are sha256s by tier. A version never stands for two states of one node's process.
    """

    since: Count | None = None
    version: Count
    added: dict[HeldTier, HeldNames] = Field(default_factory=dict)
    removed: dict[HeldTier, HeldNames] = Field(default_factory=dict)


class PrefetchHint(Reply):
    """A base model that the node is expected to draw with soon, and its files. A new hint replaces the one before."""

    base_key: str
    downloads: tuple[Download, ...]


def merged(known: HeldTiers, version: int | None, report: HeldModels) -> HeldTiers | None:
    """Return the tiers after the report, or None when it does not follow on `version`: ask for a whole one then."""
    if report.since is None:
        known = {}
    elif report.since != version:
        return None
    tiers = {
        tier: (known.get(tier, frozenset()) - frozenset(report.removed.get(tier, ())))
        | frozenset(report.added.get(tier, ()))
        for tier in HeldTier
    }
    return {tier: names for tier, names in tiers.items() if names}


class HeldModelsLog:
    """The models that a node holds, and how they changed. May be used from any thread."""

    def __init__(self, *, first_version: int = 0) -> None:
        self._lock = threading.Lock()
        self._version = first_version
        self._tiers: dict[HeldTier, frozenset[str]] = {}
        self._changes: list[tuple[int, HeldTier, str]] = []  # the version after each change

    @property
    def version(self) -> int:
        """Return the version of the present state."""
        return self._version

    def replace(self, tier: HeldTier, sha256s: Iterable[str]) -> None:
        """Note that the tier holds these files and no others."""
        with self._lock:
            now, before = frozenset(sha256s), self._tiers.get(tier, frozenset())
            for changed in sorted(now ^ before):
                self._version += 1
                self._changes.append((self._version, tier, changed))
            self._tiers[tier] = now
            del self._changes[:-MOST_CHANGES]

    def report(self, since: int | None) -> HeldModels | None:
        """Return the changes since a version that the server has; None when there are none.

        Everything is told when `since` is None, or too old, or not a version of this log.
        """
        with self._lock:
            if since == self._version:
                return None
            oldest = self._changes[0][0] - 1 if self._changes else self._version
            if since is None or not oldest <= since < self._version:
                whole = {tier: tuple(sorted(names)) for tier, names in self._tiers.items() if names}
                return HeldModels(version=self._version, added=whole)
            touched = {(tier, name) for version, tier, name in self._changes if version > since}
            return HeldModels(
                since=since,
                version=self._version,
                added=self._by_tier(touched, held=True),
                removed=self._by_tier(touched, held=False),
            )

    def _by_tier(self, touched: set[tuple[HeldTier, str]], *, held: bool) -> dict[HeldTier, tuple[str, ...]]:
        found: dict[HeldTier, tuple[str, ...]] = {}
        for tier, name in sorted(touched):
            if (name in self._tiers.get(tier, ())) is held:
                found[tier] = (*found.get(tier, ()), name)
        return found
