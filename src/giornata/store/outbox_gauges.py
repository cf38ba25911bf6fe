"""Measure how far the webhooks are behind: events that are no deliveries yet, and deliveries that are due."""

import sqlalchemy as sa

from giornata.control.ports.node_queries.gauges import OutboxGauges
from giornata.domain.accounts.notifications import DeliveryState
from giornata.store.schema import events, webhook_cursor, webhook_deliveries, webhooks
from giornata.store.schema.made import HAPPENED_HERE


def _oldest_due() -> sa.Select[int]:
    """Select since when the oldest delivery is due. Reads ix_webhook_deliveries_open."""
    due, others = webhook_deliveries.alias("due"), webhook_deliveries.alias("others")
    fails = sa.exists().where(
        others.c.webhook_id == due.c.webhook_id, others.c.ended_at_ms.is_(None), others.c.tries > 0
    )
    return (
        sa.select(sa.func.min(due.c.due_at_ms))
        .select_from(due.join(webhooks, (webhooks.c.id == due.c.webhook_id) & webhooks.c.enabled))
        .where(due.c.ended_at_ms.is_(None), due.c.state == DeliveryState.PENDING, ~fails)
    )


# Made once: building a statement costs more than running it.
OLDEST_DUE = _oldest_due()
FIRST_WANTED = sa.select(sa.func.min(webhooks.c.begins_after)).where(webhooks.c.enabled)
CURSOR = sa.select(webhook_cursor.c.event_id)


def outbox_gauges(connection: sa.Connection) -> OutboxGauges:
    """Return since when the oldest event and the oldest delivery wait. Without a webhook nothing waits."""
    begins_after = connection.scalar(FIRST_WANTED)
    if begins_after is None:
        return OutboxGauges()
    turned = max(begins_after, connection.scalar(CURSOR) or 0)
    oldest = sa.select(events.c.at_ms).where(events.c.id > turned, HAPPENED_HERE).order_by(events.c.id).limit(1)
    return OutboxGauges(oldest_event_at_ms=connection.scalar(oldest), oldest_due_at_ms=connection.scalar(OLDEST_DUE))
