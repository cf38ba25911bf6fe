"""Projects, keys, nodes and costs, as an operator sees them."""

from datetime import datetime
from enum import StrEnum
from typing import Self

from pydantic import ConfigDict, Field, model_validator

from giornata.domain.files.datasets import MAX_DATASET_ITEMS
from giornata.domain.generation.picture import SafetyPolicy
from giornata.protocol.model import Label, Message, Reply
from giornata.protocol.node.node_checks import NodeVerdict

ROOT_PROJECT = "default"
"""The operator's project. Its admin keys govern the installation; its node keys serve every project's jobs."""


class Scope(StrEnum):
    """A verb that a key may do in its project.

    `member` stands for the four verbs of a user, and `admin` reaches these four as well.
    """

    ADMIN = "admin"
    MEMBER = "member"
    NODE = "node"
    JOBS_READ = "jobs:read"
    JOBS_WRITE = "jobs:write"
    DATASETS = "datasets"
    GENERATE = "generate"

    @property
    def reach(self) -> frozenset["Scope"]:
        """All verbs that a key of this scope may do."""
        return _REACH.get(self, frozenset({self}))


USER_VERBS = frozenset({Scope.JOBS_READ, Scope.JOBS_WRITE, Scope.DATASETS, Scope.GENERATE})
_REACH = {Scope.MEMBER: USER_VERBS, Scope.ADMIN: USER_VERBS | {Scope.ADMIN}}
MOST_OVERLAP_S = 30 * 24 * 3600
MOST_KEY_TTL_S = 10 * 366 * 24 * 3600


class CreateProject(Message):
    """`POST /v1/projects` (root admin only)."""

    id: str = Field(pattern=r"^[a-z][a-z0-9-]{0,38}[a-z0-9]$")
    name: Label | None = None


class SetBudget(Message):
    """`PUT /v1/projects/{id}/budget` (root admin only). A budget that is not given stays as it is."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    budget_micro_usd: int | None = Field(
        None,
        ge=0,
        le=10**15,
        description="Maximum cost of all jobs of the project; 0: nothing; null: without a limit.",
    )
    monthly_budget_micro_usd: int | None = Field(
        None,
        ge=0,
        le=10**15,
        description="Maximum cost of all jobs in a calendar month (UTC); 0: nothing; null: without a limit.",
    )

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("give budget_micro_usd, monthly_budget_micro_usd, or both")
        return self


class SetLimits(Message):
    """`PUT /v1/projects/{id}/limits` (root admin only)."""

    max_pictures: int | None = Field(
        ge=1,
        le=MAX_DATASET_ITEMS,
        description="Maximum pictures in a dataset of the project; null: as many as the installation allows.",
    )


class SetSafety(Message):
    """`PUT /v1/projects/{id}/safety` (root admin only)."""

    safety: SafetyPolicy = Field(
        description="Treatment of unsafe pictures. off: pictures are checked where their order asks for it. flag: "
        "all are checked, and unsafe ones get the flag `unsafe`. block: all are checked, and unsafe ones are not "
        "uploaded.",
    )


class Project(Reply):
    """A tenant. Its money is shown when it has a budget."""

    id: str
    name: str
    created_at: datetime
    created_by: str | None = Field(
        None, description="The person or the key that made it; null: the installation, or not known."
    )
    budget_micro_usd: int | None = None
    spent_micro_usd: int | None = Field(None, description="Cost of all jobs of the project so far.")
    reserved_micro_usd: int | None = Field(
        None, description="Money that jobs which have not ended reserve and have not spent."
    )
    monthly_budget_micro_usd: int | None = Field(None, description="Budget of each calendar month in UTC.")
    month: str | None = Field(None, description="Current month, such as 2026-11, when there is a budget per month.")
    month_spent_micro_usd: int | None = Field(None, description="Cost of all jobs of the project in this month.")
    max_pictures: int | None = Field(None, description="Maximum pictures in a dataset.")
    safety: SafetyPolicy | None = Field(None, description="Treatment of unsafe pictures: off, flag or block.")


class ProjectPage(Reply):
    """`GET /v1/projects`: all of them for a root admin, else the caller's own."""

    items: tuple[Project, ...]
    next: str | None = None


class CreateKey(Message):
    """The body of `POST /v1/keys`, which creates an API key."""

    scope: Scope = Scope.MEMBER
    scopes: tuple[Scope, ...] | None = Field(
        None, min_length=1, max_length=len(Scope), description="Several scopes, in place of `scope`."
    )
    expires_in_s: int | None = Field(
        None,
        ge=1,
        le=MOST_KEY_TTL_S,
        description="Seconds after which the server refuses the key. Default: the key does not expire.",
    )
    project_id: str | None = Field(None, description="Id of another project than the caller's. Root admin only.")
    name: Label = "key"
    login: bool = Field(
        False,
        description="Create a key that makes and revokes keys of its person, as a session does. Needs a session.",
    )
    fleet: Label | None = Field(
        None,
        description="Of a node's key: it is for the operator's machines in this fleet and for no others; root admin "
        "only. Default: a key of another project than the operator's is for machines of that project.",
    )
    max_price_micro_usd_per_hour: int | None = Field(
        None,
        ge=0,
        le=100_000_000_000,
        description="Of a node's key: the highest price that its nodes may name. Default: the setting "
        "max_node_price_usd_per_hour, which only a root admin may exceed.",
    )


class RotateKey(Message):
    """The body of `POST /v1/keys/{id}/rotate`, which gives a key a new secret."""

    overlap_s: int = Field(
        86_400, ge=0, le=MOST_OVERLAP_S, description="Seconds for which the old secret stays valid."
    )


class Key(Reply):
    """A key without its secret.

    `scope` is `member` for each key of a user, whichever verbs it has; `scopes` lists them.
    """

    id: str
    prefix: str
    name: str
    scope: Scope
    scopes: tuple[Scope, ...] = ()
    project_id: str
    created_by: str | None = Field(None, description="Person or key that made the key; null: not known.")
    expires_at: datetime | None = None
    previous_secret_until: datetime | None = Field(
        None, description="Instant until which the secret before the rotation is valid."
    )
    login: bool = Field(
        False, description="True for a key that may make and end keys of its person, as `giornata login` needs."
    )
    created_at: datetime
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None
    fleet: str | None = None
    max_price_micro_usd_per_hour: int | None = None


class CreatedKey(Key):
    """The only time that the secret is shown."""

    secret: str


class KeyPage(Reply):
    """The reply of `GET /v1/keys`: a page of keys."""

    items: tuple[Key, ...]
    next: str | None = None


class NodeState(StrEnum):
    """Derived from when the node was last heard of and what it holds."""

    IDLE = "idle"
    BUSY = "busy"
    DRAINING = "draining"
    GONE = "gone"


class Node(Reply):
    """One running agent with its engine."""

    id: str
    machine_id: str
    name: str
    fleet: str
    state: NodeState
    job_ids: tuple[str, ...]
    pid: int | None = None
    engine_pid: int | None = None
    device: str = ""
    vram_bytes: int | None = None
    price_micro_usd_per_hour: int = 0
    held_models: tuple[str, ...] = ()
    first_seen_at: datetime
    last_seen_at: datetime
    strikes: int = 0
    instance_id: str | None = None
    places: int = 1
    checks: NodeVerdict | None = None


class NodePage(Reply):
    """`GET /v1/nodes`; nodes gone for longer than an hour are left out unless asked for."""

    items: tuple[Node, ...]
    next: str | None = None


class WorkCosts(Reply):
    """The attempts that began in the time, with all that their jobs pay for them."""

    jobs: int = Field(description="Number of jobs that the attempts belong to.")
    jobs_succeeded: int
    steps: int = Field(description="Number of optimizer steps, with those that were made again.")
    useful_steps: int = Field(description="Steps that are safe in a checkpoint or a result.")
    cost_micro_usd: int
    cost_per_job_usd: float | None = Field(None, description="Cost of all attempts, per job that succeeded.")
    cost_per_step_usd: float | None = None
    cost_per_useful_step_usd: float | None = None


class FleetCosts(Reply):
    """Bill of the provider for a fleet in the period, at the prices of the time; the parts add up to `billed`."""

    fleet: str
    instances: int
    billed_s: float
    startup_s: float = Field(
        description="Seconds before instances first asked for work, and before the first step of useful attempts."
    )
    useful_s: float = Field(description="Seconds from the first step on, of attempts whose steps are safe.")
    lost_s: float
    at_risk_s: float = Field(description="Seconds since the last checkpoint, of attempts that still run.")
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
