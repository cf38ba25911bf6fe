"""Model files that were damaged on one node, and the nodes that were told to read theirs again.

It is what one server process heard. A process that restarts has forgotten it, and a warning may be lost with its
reply: a damaged file still fails the lease that uses it.
"""

import threading
from collections.abc import Collection
from dataclasses import dataclass, field

SUSPECTED_MS = 86_400_000
"""A file that was damaged on one node is suspected on the others for so long."""
MOST_FILES = 4096
"""Files that are remembered: a node that lies may name any number. Further ones are passed over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _DamagedFile:
    since_ms: int
    damaged_on: set[str] = field(default_factory=set)
    warned: set[str] = field(default_factory=set)


class SuspectModels:
    """Files by their sha256. May be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, _DamagedFile] = {}

    def is_known(self, node_id: str, sha256: str) -> bool:
        """Return True when it was noted that the file was damaged on the node."""
        suspect = self._files.get(sha256)
        return suspect is not None and node_id in suspect.damaged_on

    def note(self, node_id: str, sha256s: Collection[str], *, at_ms: int) -> None:
        """Note that these files were damaged on the node."""
        with self._lock:
            self._files = {key: each for key, each in self._files.items() if at_ms - each.since_ms < SUSPECTED_MS}
            room = MOST_FILES - len(self._files)
            new = [each for each in dict.fromkeys(sha256s) if each not in self._files]
            for sha256 in [*(each for each in sha256s if each in self._files), *new[:room]]:
                self._files.setdefault(sha256, _DamagedFile(since_ms=at_ms)).damaged_on.add(node_id)

    def to_verify(self, node_id: str, held: frozenset[str]) -> tuple[str, ...]:
        """Return those of the node's files that were damaged on another one. Each is told once."""
        if not self._files:
            return ()
        with self._lock:
            suspects = {key: self._files[key] for key in sorted(held & self._files.keys())}
            found = [key for key, each in suspects.items() if node_id not in each.damaged_on | each.warned]
            for key in found:
                self._files[key].warned.add(node_id)
            return tuple(found)
