"""Webhooks of a project over HTTP: made, listed, changed, rotated, tested; their deliveries, shown and replayed."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints, ValidationInfo, field_validator

from giornata.domain.accounts.notifications import EVERYTHING, GROUP, DeliveryState
from giornata.protocol.events import EventType, OperatorEvent
from giornata.protocol.model import MAX_COUNT, Message, Reply
from giornata.protocol.project.secrets import Confidential

MOST_EVENTS = 64
MOST_REPLAYED = 1000
LONGEST_OVERLAP_S = 7 * 86_400
DAY_S = 86_400

EVENT_NAMES = tuple(str(each) for each in (*EventType, *OperatorEvent))
EVENT_GROUPS = tuple(sorted({name.partition(".")[0] + GROUP for name in EVENT_NAMES if "." in name}))


def _known_event(pattern: str) -> str:
    if pattern not in {EVERYTHING, *EVENT_NAMES, *EVENT_GROUPS}:
        raise ValueError(f"{pattern!r} is no event, such as job.succeeded, and no group of events, such as job.*")
    return pattern


EventPattern = Annotated[str, StringConstraints(max_length=64), AfterValidator(_known_event)]
EventPatterns = Annotated[list[EventPattern], Field(min_length=1, max_length=MOST_EVENTS)]
JOB_EVENTS = "job.*"


class WebhookFormat(StrEnum):
    """The form in which a webhook's target gets events."""

    STANDARD = "standard"  # JSON with a signature, by Standard Webhooks
    SLACK = "slack"
    DISCORD = "discord"
    MAIL = "mail"


class CreateWebhook(Message):
    """`POST /v1/webhooks`: where events go, and which. `target` is a URL; of the format `mail`, an address."""

    target: Confidential = Field(
        min_length=3,
        max_length=2048,
        description="URL (https) that gets the events, or a mail address for the format mail.",
    )
    format: WebhookFormat = WebhookFormat.STANDARD
    events: EventPatterns = Field(
        default_factory=lambda: [JOB_EVENTS], description="Types of events, groups such as job.*, or *."
    )
    job_id: str | None = Field(
        None, pattern=r"^job_[0-9A-Za-z]{1,36}$", description="Only events of this job. Default: events of all jobs."
    )
    daily_digest: bool = Field(
        False, description="One message a day with the day's events, for the formats mail, slack and discord."
    )

    @field_validator("daily_digest")
    @classmethod
    def _digest_is_for_people(cls, daily_digest: bool, info: ValidationInfo) -> bool:
        if daily_digest and info.data.get("format") is WebhookFormat.STANDARD:
            raise ValueError("is for the formats mail, slack and discord")
        return daily_digest


class ChangeWebhook(Message):
    """`PATCH /v1/webhooks/{id}`. What is not given stays as it is."""

    enabled: bool | None = None
    events: EventPatterns | None = None


class RotateWebhook(Message):
    """`POST /v1/webhooks/{id}/rotate`: for `overlap_s`, both secrets sign each delivery."""

    overlap_s: int = Field(DAY_S, ge=0, le=LONGEST_OVERLAP_S)


class ReplayDeliveries(Message):
    """`POST /v1/webhooks/{id}/replay`: these deliveries, or every dead one."""

    delivery_ids: list[Annotated[int, Field(ge=1, le=MAX_COUNT)]] | None = Field(
        None, min_length=1, max_length=MOST_REPLAYED
    )


class Webhook(Reply):
    """A webhook. `target` shows the host alone for Slack and Discord, whose URLs are secrets.

    `disabled_because` says why the server disabled it. `old_secret_until` is the end of the overlap of a rotation.
    """

    id: str
    target: str
    format: WebhookFormat
    events: list[str]
    job_id: str | None
    daily_digest: bool
    enabled: bool
    disabled_because: str
    waiting: int = 0
    dead: int = 0
    old_secret_until: datetime | None
    created_at: datetime
    created_by: str | None = Field(None, description="The person or the key that made it; null: not known.")


class SecretOfWebhook(Webhook):
    """A webhook with its signing secret, which is shown this once. Only the format `standard` has one."""

    secret: str | None


class WebhookPage(Reply):
    """`GET /v1/webhooks`: the project's, newest first."""

    items: list[Webhook]
    next: str | None = None


class WebhookDelivery(Reply):
    """A delivery. `event_id` is the header webhook-id; a repeated delivery has the same.

    `next_try_at` is null once the delivery has ended. `error` says why the last try failed.
    """

    id: int
    event_id: str
    type: str
    job_id: str | None
    state: DeliveryState
    tries: int
    status: int | None
    error: str
    created_at: datetime
    next_try_at: datetime | None
    ended_at: datetime | None


class WebhookDeliveryPage(Reply):
    """`GET /v1/webhooks/{id}/deliveries`: those of one webhook, newest first."""

    items: list[WebhookDelivery]
    next: str | None = None


class Replayed(Reply):
    """The number of deliveries that are tried again."""

    replayed: int
