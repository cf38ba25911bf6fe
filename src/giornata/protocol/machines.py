"""How machines fare, as an operator sees it."""

from datetime import datetime

from pydantic import Field

from giornata.domain.health import MachineState
from giornata.protocol.model import Message, Reply


class HeldFailure(Reply):
    """A failure of the last day that is held against a machine. One that came with another of a kind weighs 0."""

    job_id: str
    reason: str
    at: datetime
    weight: float


class Machine(Reply):
    """How a machine fares with jobs of one kind."""

    machine_id: str
    kind: str
    state: str = Field(
        description="ok, probation (a canary first, or one job at a time) or quarantined (no work).",
        json_schema_extra={"enum": [str(state) for state in MachineState]},
    )
    reason: str = Field("", description="Why it is in this state.")
    since: datetime
    until: datetime | None = Field(None, description="When its quarantine ends by itself.")
    strikes: float = Field(description="As of now; half of them are forgotten in each half-life.")
    quota: int = Field(description="Attempts at stake that it may have begun within an hour.")
    successes_in_a_row: int
    quarantined_times: int
    by_hand: bool = Field(False, description="An operator quarantined it, and an operator has to let it go.")
    failures: tuple[HeldFailure, ...] = ()


class MachinePage(Reply):
    """`GET /v1/machines`."""

    items: tuple[Machine, ...]
    next: str | None = None


class QuarantineMachine(Message):
    """`POST /v1/machines/{machine_id}/quarantine`."""

    reason: str = Field("by hand", min_length=1, max_length=500)
