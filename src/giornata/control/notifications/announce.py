"""Tell webhooks of what belongs to no job, in the transaction in which it happens."""

from collections.abc import Mapping
from typing import Any

from giornata.control.context import Context
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.webhook_store import NewDelivery, WebhookRecord
from giornata.control.timestamps import instant
from giornata.domain.accounts.notifications import matches, next_digest_ms
from giornata.protocol.events import OperatorEvent
from giornata.protocol.project.webhooks import Delivery


def announce(
    tx: Transaction, ctx: Context, project_id: str, event: OperatorEvent, data: Mapping[str, Any], *, at_ms: int
) -> None:
    """Write a delivery for each webhook of the project that wants such events of all jobs."""
    webhooks = [
        each
        for each in tx.webhooks.enabled(project_id=project_id)
        if each.job_id is None and each.user_id is None and matches(each.events, event)
    ]
    event_id = ctx.names.new("evt") if webhooks else ""
    tx.webhook_deliveries.add_each([jobless_delivery(each, event_id, event, data, at_ms=at_ms) for each in webhooks])


def jobless_delivery(
    webhook: WebhookRecord, event_id: str, event: OperatorEvent, data: Mapping[str, Any], *, at_ms: int
) -> NewDelivery:
    """Return a delivery that waits for no other one, unless the webhook has a digest."""
    body = Delivery(id=event_id, type=event, job_id=None, at=instant(at_ms), data=dict(data))
    digest = webhook.daily_digest and event is not OperatorEvent.WEBHOOK_TEST
    return NewDelivery(
        webhook_id=webhook.id,
        chain=webhook.id if digest else event_id,
        event_id=event_id,
        job_id=None,
        type=event,
        body=body.model_dump_json(),
        due_at_ms=next_digest_ms(at_ms) if digest else at_ms,
        created_at_ms=at_ms,
    )
