"""Queries for webhooks and for their deliveries (`tx.webhooks`, `tx.webhook_deliveries`).

The table of events is the outbox: an event is written in the transaction of what happened, and a loop turns events
into deliveries later. No request that writes an event pays for webhooks.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from giornata.control.ports.user_queries.records import EventRecord
from giornata.control.ports.user_queries.user_store import Before
from giornata.domain.accounts.notifications import DeliveryState
from giornata.protocol.project.webhook_endpoints import WebhookFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookRecord:
    """A webhook. `target` is what may be shown; the whole target and the secrets are `sealed`.

    One with a `user_id` is that person's own: it gets events of the person's jobs alone, and nobody else sees it.
    """

    id: str
    project_id: str
    job_id: str | None
    format: WebhookFormat
    events: Sequence[str]
    target: str
    sealed: str = field(repr=False)
    daily_digest: bool
    enabled: bool
    disabled_because: str
    begins_after: int
    old_secret_until_ms: int | None
    created_at_ms: int
    user_id: str | None = None
    created_by: str | None = None  # the person or the key; None: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDelivery:
    """A delivery that is to be made from `due_at_ms` on, after those of its webhook with the same `chain`."""

    webhook_id: str
    chain: str
    event_id: str
    job_id: str | None
    type: str
    body: str
    due_at_ms: int
    created_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryRecord(NewDelivery):
    """A delivery as it is stored. `status` and `error` are those of its last try."""

    id: int
    state: DeliveryState
    tries: int
    status: int | None
    error: str
    ended_at_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DueChain:
    """A chain whose first open delivery is due. `troubled`: the webhook has an open delivery that failed before."""

    webhook_id: str
    chain: str
    troubled: bool


class Webhooks(Protocol):
    """Queries for the webhooks of projects. `get`, `page`, `count` and `drop` pass over those of people."""

    def add(self, webhook: WebhookRecord) -> None:
        """Insert a new webhook, whose id is unused."""

    def get(self, webhook_id: str, *, project_id: str) -> WebhookRecord | None:
        """Return the webhook; None when the project has none of this id."""

    def page(self, project_id: str, *, before: Before, limit: int) -> list[WebhookRecord]:
        """Return at most `limit` webhooks of the project that were made before `before`, newest first."""

    def count(self, project_id: str) -> int:
        """Return the number of the project's webhooks, enabled or not."""

    def enabled(self, *, project_id: str | None = None) -> list[WebhookRecord]:
        """Return the enabled webhooks, of all projects or of one."""

    def of_ids(self, webhook_ids: Collection[str]) -> Mapping[str, WebhookRecord]:
        """Return the webhooks of any project by id; ids without a webhook are left out."""

    def update(self, webhook_id: str, **columns: Any) -> None:
        """Set columns of the webhook, by their names. Does nothing when there is none of this id."""

    def drop(self, webhook_id: str, *, project_id: str) -> bool:
        """Delete the webhook with its deliveries; False when the project has none of this id."""

    def of_person(self, user_id: str, *, project_id: str) -> WebhookRecord | None:
        """Return the webhook by which this person is told of the own jobs in the project."""

    def drop_of_person(self, user_id: str, *, project_id: str | None) -> None:
        """Delete the person's own webhook in this project, or in every project, with its deliveries."""


class WebhookDeliveries(Protocol):
    """Queries for the outbox and the deliveries."""

    def newest_event(self) -> int:
        """Return the id of the newest event that can be seen; 0 when there is none."""

    def event_writers(self) -> frozenset[str]:
        """Return names of the transactions that may have events with earlier ids than `newest_event`, and that have
        not ended.

        PostgreSQL draws ids before it commits, so an event may appear below one that was seen. On SQLite, writers
        take turns, and the set is empty.
        """

    def cursor(self) -> int:
        """Return the id up to which events have been turned into deliveries. Nobody else moves it meanwhile."""

    def move_cursor(self, event_id: int) -> None:
        """Set the cursor that `cursor` returned: events up to this id have their deliveries."""

    def events_between(
        self, after: int, up_to: int, *, project_ids: Collection[str], limit: int
    ) -> list[tuple[str, EventRecord]]:
        """Return events with `after` < id ≤ `up_to` and their projects, oldest first, without those of replay audits,
        which are the platform's own jobs.
        """

    def makers(self, job_ids: Collection[str]) -> Mapping[str, str]:
        """Return the person behind each of these jobs, who submitted it by a session or by an own key."""

    def add_each(self, deliveries: Sequence[NewDelivery]) -> None:
        """Insert pending deliveries that were never tried. Does nothing without any."""

    def sending(self, *, at_ms: int) -> Mapping[str, int]:
        """Return how many chains of each webhook are being sent."""

    def due_chains(self, *, at_ms: int, most_each: int, not_of: Collection[str], limit: int) -> list[DueChain]:
        """Return chains of enabled webhooks that are due, longest due first, and at most `most_each` of a webhook."""

    def take(
        self, chains: Sequence[DueChain], *, at_ms: int, until_ms: int, most: int, most_of_digest: int
    ) -> list[DeliveryRecord]:
        """Mark the first due deliveries of the chains as being sent until `until_ms`; return them, oldest first."""

    def delivered(self, delivery_ids: Sequence[int], *, at_ms: int, status: int | None) -> None:
        """Mark open deliveries as delivered at `at_ms`, with the HTTP status of the reply, and count the try."""

    def put_back(self, delivery_ids: Sequence[int], *, taken_until_ms: int, due_at_ms: int, **columns: Any) -> int:
        """Return deliveries to the queue, and set columns of them; return how many there were.

        Leaves alone what has ended, and what somebody else has taken since.
        """

    def give_up(self, delivery_ids: Sequence[int], *, taken_until_ms: int, at_ms: int, **columns: Any) -> int:
        """Mark deliveries as dead, as `put_back` does."""

    def replay(self, webhook_id: str, delivery_ids: Sequence[int] | None, *, at_ms: int, limit: int) -> int:
        """Return ended deliveries of these ids to the queue, or all dead ones; return how many there were."""

    def page(
        self, webhook_id: str, *, state: DeliveryState | None, before: int | None, limit: int
    ) -> list[DeliveryRecord]:
        """Return at most `limit` deliveries with ids below `before`, in this state or in any, newest first."""

    def counts(self, webhook_ids: Collection[str]) -> Mapping[str, Mapping[DeliveryState, int]]:
        """Return the number of deliveries that are not delivered, by webhook and state."""

    def drop_ended(self, *, before_ms: int, limit: int) -> int:
        """Delete deliveries that ended before `before_ms`; return how many there were."""
