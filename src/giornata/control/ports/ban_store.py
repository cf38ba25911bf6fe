"""What the control plane asks of the store about queued jobs that machines have failed, and about connected nodes.

Every method runs in the caller's transaction. Instants are epoch milliseconds of the server's clock.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from giornata.domain.backoff import Ban


@dataclass(frozen=True, slots=True, kw_only=True)
class BannedJob:
    """A queued job for any machine, and its bans. `fruitless` counts its attempts in a row that made no progress."""

    id: str
    project_id: str
    kind: str
    min_vram_bytes: int
    fruitless: int
    bans: tuple[Ban, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectedNode:
    """A node heard of lately that is not leaving, and that no newer process has replaced."""

    machine_id: str
    project_id: str
    kinds: tuple[str, ...]
    vram_bytes: int | None


class Bans(Protocol):
    """Bans of queued jobs. `Judgements` adds them."""

    def connected(self, *, seen_since_ms: int) -> Sequence[ConnectedNode]:
        """The nodes that could be given a job, whatever they are at now."""

    def waiting(self, kinds: Collection[str]) -> Sequence[BannedJob]:
        """The queued jobs of these kinds, for any machine, that have bans. Reads interrupted jobs from an index."""

    def of_job(self, job_id: str) -> Sequence[Ban]: ...

    def on_machine(self, machine_id: str, kinds: Collection[str]) -> Sequence[str]:
        """Ids, in order, of the queued jobs of these kinds that are banned from this machine."""

    def lift(self, job_id: str, machine_ids: Collection[str]) -> None:
        """Let these machines have the job again. The job must be locked."""
