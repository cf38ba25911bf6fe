"""What a modelled node asks of a control plane: the one that ships, or the ancestor's."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol

from giornata.domain.reasons import Reason

if TYPE_CHECKING:
    from giornata.simulate.node import ModelledNode


class ServerAway(Exception):
    """Nobody answers."""


class Answer(Enum):
    """To a beat."""

    GO_ON = auto()
    RELEASE = auto()  # give the job back and stay
    LEAVE = auto()  # give the job back and go
    LOST = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A job for a node. `every` is the steps between checkpoints; None: by their cost and the fleet's losses."""

    job_id: str
    machine_id: str
    attempt_id: str
    attempt: int
    start_step: int
    total_steps: int
    every: int | None
    lease_s: float
    mtbi_s: float
    max_at_risk_s: float
    model: str
    is_trial: bool = False  # the platform's own: a canary


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    """No job. `leave`: and none will come."""

    reason: str
    leave: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a node says in a beat."""

    attempt_id: str
    job_id: str
    step: int
    phase: str
    held: tuple[str, ...]


class Plane(Protocol):
    """Every call raises ServerAway while nobody answers."""

    def claim(self, nodes: "Sequence[ModelledNode]") -> "list[Grant | Nothing]":
        """For each of them."""

    def beat(self, beats: Sequence[Progress]) -> list[Answer]:
        """Of one instant."""

    def commit(self, grant: Grant, step: int) -> bool:
        """A checkpoint is in storage; False: the lease is lost."""

    def complete(self, grant: Grant) -> bool:
        """The job is done; False: the lease is lost."""

    def fail(self, grant: Grant, reason: Reason, step: int) -> bool:
        """The attempt cannot go on; False: the lease is lost."""

    def release(self, grant: Grant, step: int) -> bool:
        """The node gives the job back; False: the lease is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manners:
    """How a node's agent behaves."""

    poll_s: float  # between claims, when there is nothing
    checks_s: float  # from its start to the first claim
    stops_by_own_clock: bool  # one lease after the last renewal
