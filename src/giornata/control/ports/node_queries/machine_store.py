"""The store's interface for machines: their health, bans and strikes, and the pace of attempts.

Every method runs in the caller's transaction. Instants are epoch milliseconds of the server's clock.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from giornata.control.ports.fleet import Instance
from giornata.control.ports.node_queries.work_rows import AttemptRow
from giornata.domain.jobs.backoff import Ban
from giornata.domain.jobs.reasons import Reason
from giornata.domain.machines.health import MachineHealth, MachineState

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
    """A machine's attempts of a kind: how many hold a lease, and when those of late began that live or failed."""

    live: int
    at_stake_ms: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LastNode:
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
    """Queries for the health of machines, for each kind of job; a machine that never ended a job has no row."""

    def get_each(self, machine_ids: Collection[str], kinds: Collection[str]) -> Mapping[MachineKey, MachineHealth]:
        """Return the rows that there are, as they are just now."""

    def lock_each(self, keys: Collection[MachineKey]) -> Mapping[MachineKey, MachineHealth]:
        """Return the rows that there are, held until the transaction ends. Once in a transaction, after the jobs and
        nodes.

        They are locked in the order of their keys, so that two transactions do not deadlock.
        """

    def make_sure(self, health: MachineHealth) -> None:
        """Insert the row unless the machine has one for the kind."""

    def put(self, health: MachineHealth) -> None:
        """Write a row that is locked."""

    def engagement(self, machine_id: str, kind: str, *, since_ms: int) -> Engagement:
        """Return the live attempts of this kind on the machine, and the starts after `since_ms` of those that live or
        failed.
        """

    def outcomes(self, kind: str, reason: Reason, *, owner: str | None, since_ms: int) -> Outcomes:
        """Return the outcomes on the machines of this owner; None: the operator."""

    def failures_of_job(self, job_id: str) -> Sequence[tuple[str, str, Reason]]:
        """Return (attempt, machine, reason) of the job's ends that a machine may have been to blame for."""

    def of_canary(self, job_id: str) -> Sequence[MachineKey]:
        """Return the rows that wait for this canary."""

    def in_state(self, state: MachineState, *, limit: int) -> Sequence[MachineHealth]:
        """Return rows in this state, those that are in it longest first."""

    def page(self, *, state: str | None, before: tuple[int, str] | None, limit: int) -> Sequence[MachineHealth]:
        """Return all rows, those with the latest change of state first; `before` is (since_ms, "machine kind")."""

    def of_machine(self, machine_id: str) -> Sequence[MachineHealth]:
        """Return the machine's rows, one for each kind."""

    def kinds_of(self, machine_id: str) -> frozenset[str]:
        """Return the kinds that nodes on the machine offered when last heard of."""

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
        """Insert a queued job of kind canary, in the project of the machine's owner, which only this machine may
        have.
        """

    def is_live(self, job_id: str) -> bool:
        """Return True when the job has not ended."""

    def last_nodes(self, machine_ids: Collection[str], *, seen_since_ms: int) -> Sequence[LastNode]:
        """Return the node last heard of on each of these machines, where one was heard of since then."""

    def leave(self, last_node: LastNode, fleet: str, instance: Instance, *, reason: str, at_ms: int) -> None:
        """Give the node no more work and tell it to leave; note since when its instance is to go."""

    def reallocations(self, fleet: str, *, since_ms: int) -> Sequence[Reallocation]:
        """Return the reallocations of the fleet since then, latest first."""

    def add_reallocation(self, reallocation: Reallocation) -> None:
        """Note that a provider was asked to replace an instance."""


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
    """Queries for bans (this machine, this job) and strikes (this machine, any job)."""

    def connected(self, *, seen_since_ms: int) -> Sequence[ConnectedNode]:
        """Return the nodes that could be given a job, whatever they are at now."""

    def waiting(self, kinds: Collection[str]) -> Sequence[BannedJob]:
        """Return the queued jobs of these kinds, for any machine, that have bans. Reads interrupted jobs from an
        index.
        """

    def of_job(self, job_id: str) -> Sequence[Ban]:
        """Return the job's bans, sorted by machine; also those of a job that has ended."""

    def on_machine(self, machine_id: str, kinds: Collection[str]) -> Sequence[str]:
        """Return ids, in order, of the queued jobs of these kinds that are banned from this machine."""

    def lift(self, job_id: str, machine_ids: Collection[str]) -> None:
        """Let these machines have the job again. The job must be locked."""

    def ban(self, job_id: str, machine_id: str, reason: Reason, *, at_ms: int) -> None:
        """Do not give the job to the machine again, until the ban is lifted. May be repeated."""

    def strike(self, attempt: AttemptRow, reason: Reason, *, at_ms: int) -> bool:
        """Hold the attempt against its machine; False when it was held already."""


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


class StepAwaited(NamedTuple):
    """A live attempt that has made no step. `until_ms` is its last sign of life."""

    attempt_id: str
    started_at_ms: int
    until_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Takers:
    """The numbers of nodes that could take a job: without work, with work, and still to come."""

    idle: int
    busy: int
    coming: int


class Paces(Protocol):
    """Queries for speeds of attempts, and for other nodes that could do the work."""

    def live(self) -> Sequence[PaceRow]:
        """Return the attempts that have made a step and not ended."""

    def without_a_step(self, *, started_before_ms: int) -> Sequence[StepAwaited]:
        """Return the attempts that live, have no order, and have made no step, of jobs whose number of steps is
        known.
        """

    def ended(self, *, since_ms: int, limit: int) -> Sequence[PaceRow]:
        """Return the latest attempts that ended since; those that were too slow too."""

    def takers(self, of: PaceRow, *, seen_since_ms: int) -> Takers:
        """Return the nodes with the same device on other machines, in good standing, that may have the job."""
