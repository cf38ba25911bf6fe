"""How fast attempts are, as the store knows it. Instants are epoch milliseconds of the server's clock."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class PaceRow(NamedTuple):
    """An attempt that has made a step.

    `until_ms` is its last sign of life; at `stepped_at_ms` step `stepped_to` became known, the latest that it told.
    `width` counts the attempts that shared its batch, itself included.
    """

    attempt_id: str
    job_id: str
    machine_id: str
    kind: str
    device: str
    shape_key: str
    width: int
    project_id: str
    order: str
    lapsed: bool
    started_at_ms: int
    first_step_at_ms: int
    first_step: int | None
    stepped_to: int | None
    stepped_at_ms: int | None
    until_ms: int
    total_steps: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Takers:
    """Nodes that could take a job: without work, with work, and still to come."""

    idle: int
    busy: int
    coming: int


class Paces(Protocol):
    """Speeds of attempts, and who else could do the work."""

    def live(self) -> Sequence[PaceRow]:
        """Of the attempts that have made a step and not ended."""

    def ended(self, *, since_ms: int, limit: int) -> Sequence[PaceRow]:
        """Of the latest that ended since; those that were too slow too."""

    def takers(self, of: PaceRow, *, seen_since_ms: int) -> Takers:
        """Nodes with the same device on other machines, in good standing, that may have the job."""
