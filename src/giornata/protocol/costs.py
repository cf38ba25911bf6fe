"""What was paid, and what for."""

from datetime import datetime

from pydantic import Field

from giornata.protocol.model import Reply


class WorkCosts(Reply):
    """The attempts that began in the time, with all that their jobs pay for them."""

    jobs: int = Field(description="Jobs that any of them was of.")
    jobs_succeeded: int
    steps: int = Field(description="As often as they were made, also those that were made again.")
    useful_steps: int = Field(description="Those that are safe in a checkpoint or a result.")
    cost_micro_usd: int
    cost_per_job_usd: float | None = Field(None, description="All of the money, per job that succeeded.")
    cost_per_step_usd: float | None = None
    cost_per_useful_step_usd: float | None = None


class FleetCosts(Reply):
    """What the provider bills for a fleet in the time, at the prices of that time; the parts add up to `billed`."""

    fleet: str
    instances: int
    billed_s: float
    startup_s: float = Field(
        description="Before an instance first asked for work, and before the first step of attempts that were of use."
    )
    useful_s: float = Field(description="From the first step on, of attempts whose steps are safe.")
    lost_s: float
    at_risk_s: float = Field(description="Done since the last checkpoint by attempts that still run.")
    idle_s: float
    billed_micro_usd: int
    startup_micro_usd: int
    useful_micro_usd: int
    lost_micro_usd: int
    at_risk_micro_usd: int
    idle_micro_usd: int


class Costs(Reply):
    """`GET /v1/costs`. Fleets are shown to an admin of the installation, who also sees the work of all projects."""

    since: datetime
    until: datetime
    work: WorkCosts
    fleets: tuple[FleetCosts, ...] = ()
