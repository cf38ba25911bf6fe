"""What the control plane asks of the store about machines.

Every method runs in the caller's transaction. Instants are epoch milliseconds of the server's clock.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from giornata.control.ports.fleet import Instance
from giornata.domain.health import Health, MachineState
from giornata.domain.reasons import Reason

MachineKey = tuple[str, str]  # machine id, kind of job


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """Machines, by how they fared with jobs of a kind lately: an end for one reason, or a first step or success.

    `jobs` counts the different ones that had that end.
    """

    failing: frozenset[str]
    fine: frozenset[str]
    jobs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Engagement:
    """What a machine has begun of a kind: how many hold a lease, and when those of late began that live or failed."""

    live: int
    at_stake_ms: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """The node that was last heard of on a machine, and what its provider calls it.

    `leaving_at_ms`: since when its instance is to go; `asked`: the provider was asked to replace it.
    """

    machine_id: str
    node_id: str
    fleet: str
    instance_id: str | None
    last_seen_at_ms: int
    live_attempts: int
    leaving_at_ms: int | None
    asked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Reallocation:
    """A machine that its provider was asked to replace."""

    fleet: str
    instance_id: str
    machine_id: str | None
    reason: str
    at_ms: int


class Machines(Protocol):
    """How machines fare with jobs of each kind; a machine that never ended a job has no row."""

    def get_each(self, machine_ids: Collection[str], kinds: Collection[str]) -> Mapping[MachineKey, Health]:
        """Those that there are, as they are just now."""

    def lock_each(self, keys: Collection[MachineKey]) -> Mapping[MachineKey, Health]:
        """Those that there are, held until the transaction ends. Once in a transaction, after the jobs and nodes.

        They are locked in the order of their keys, so that two who want several do not wait for one another.
        """

    def make_sure(self, health: Health) -> None:
        """Insert the row unless the machine has one for the kind."""

    def put(self, health: Health) -> None:
        """Write a row that is locked."""

    def engagement(self, machine_id: str, kind: str, *, since_ms: int) -> Engagement: ...

    def outcomes(self, kind: str, reason: Reason, *, owner: str | None, since_ms: int) -> Outcomes:
        """On the machines of this owner; None: the operator."""

    def failures_of_job(self, job_id: str) -> Sequence[tuple[str, str, Reason]]:
        """(attempt, machine, reason) of the job's ends that a machine may have been to blame for."""

    def of_canary(self, job_id: str) -> Sequence[MachineKey]:
        """The rows that wait for this canary."""

    def in_state(self, state: MachineState, *, limit: int) -> Sequence[Health]:
        """By since when they are in it, longest first."""

    def page(self, *, state: str | None, before: tuple[int, str] | None, limit: int) -> Sequence[Health]:
        """All, by since when they are in their state, latest first; `before` is (since_ms, "machine kind")."""

    def of_machine(self, machine_id: str) -> Sequence[Health]:
        """Its rows, one for each kind."""

    def kinds_of(self, machine_id: str) -> frozenset[str]:
        """The kinds that nodes on it offered when last heard of."""

    def insert_canary(
        self,
        job_id: str,
        *,
        project_id: str,
        machine_id: str,
        spec: Mapping[str, Any],
        at_ms: int,
        deadline_at_ms: int,
    ) -> None:
        """A queued job of kind canary, in the project of the machine's owner, which only this machine may have."""

    def is_live(self, job_id: str) -> bool:
        """Whether the job has not ended."""

    def seats(self, machine_ids: Collection[str], *, seen_since_ms: int) -> Sequence[Seat]:
        """The node last heard of on each of these machines, where one was heard of since then."""

    def leave(self, seat: Seat, fleet: str, instance: Instance, *, reason: str, at_ms: int) -> None:
        """The node gets no more work and is told to leave; note since when its instance is to go."""

    def reallocations(self, fleet: str, *, since_ms: int) -> Sequence[Reallocation]:
        """Those of the fleet since then, latest first."""

    def add_reallocation(self, reallocation: Reallocation) -> None: ...
