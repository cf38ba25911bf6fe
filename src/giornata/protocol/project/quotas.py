"""Quotas of a project, as members read them and as the operator sets them."""

from datetime import datetime
from typing import Annotated

from pydantic import ConfigDict, Field, StringConstraints

from giornata.protocol.model import Message, Reply

MOST = 10**9
MOST_BYTES = 2**60
MOST_PATTERNS = 1000
ModelPattern = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=r"^[^\x00-\x1f\x7f]+$")]
MODELS = "Patterns: sha256:HEX, family:NAME, source:NAME (blob, url, hub, civitai, job), or a name in which * stands "


class SetQuotas(Message):
    """`PUT /v1/projects/{id}/quotas` (root admin only). A limit that is not given stays as it is; null lifts it."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    max_running_jobs: int | None = Field(
        None, ge=0, le=MOST, description="Jobs that run at a time, without orders of pictures. Others wait."
    )
    max_queued_jobs: int | None = Field(None, ge=0, le=MOST, description="Jobs and orders that wait for a node.")
    max_pictures_per_day: int | None = Field(
        None, ge=0, le=MOST, description="Pictures that may be ordered on a day in UTC."
    )
    max_stored_bytes: int | None = Field(
        None, ge=0, le=MOST_BYTES, description="Bytes of uploads, models, checkpoints, results and pictures."
    )
    max_priority: int | None = Field(None, ge=-100, le=100, description="The highest priority of a job.")
    max_requests_per_s: int | None = Field(
        None, ge=1, le=MOST, description="Requests a second of all callers of the project, on all servers together."
    )
    max_requests_per_s_per_key: int | None = Field(
        None, ge=1, le=MOST, description="Requests a second of each key and session, on all servers together."
    )
    allowed_base_models: tuple[ModelPattern, ...] | None = Field(
        None, max_length=MOST_PATTERNS, description=f"{MODELS}for any text. For bases, refiners and VAEs."
    )
    allowed_adapters: tuple[ModelPattern, ...] | None = Field(
        None, max_length=MOST_PATTERNS, description=f"{MODELS}for any text. For LoRAs, embeddings and ControlNets."
    )
    max_open_orders: int | None = Field(
        None, ge=0, le=MOST, description="Orders of pictures that have not ended. More are refused."
    )


class LimitUse(Reply):
    """A limit and how much of it is used. A limit of null is none."""

    limit: int | None = None
    used: int = 0
    free_at: datetime | None = Field(
        None, description="Instant at which the whole limit is free again, if it is known."
    )


class ProjectQuotas(Reply):
    """`GET /v1/projects/{id}/quotas`: the limits of a project, and what it uses of them now."""

    project_id: str
    running_jobs: LimitUse
    queued_jobs: LimitUse
    pictures_per_day: LimitUse
    stored_bytes: LimitUse
    monthly_spend_micro_usd: LimitUse = Field(description="The budget of this month; see the budgets of projects.")
    max_priority: int | None = None
    max_requests_per_s: int | None = None
    max_requests_per_s_per_key: int | None = None
    allowed_base_models: tuple[str, ...] | None = Field(None, description="null: any.")
    allowed_adapters: tuple[str, ...] | None = Field(None, description="null: any.")
    open_orders: LimitUse = LimitUse()


class QuotaRefusal(Reply):
    """A limit of the project that had no room for a request; what is not known is null."""

    quota: str = Field(description="running_jobs, queued_jobs, open_orders, pictures_per_day, budget_micro_usd …")
    limit: int | None = None
    used: int | None = None
    free_at: datetime | None = None
