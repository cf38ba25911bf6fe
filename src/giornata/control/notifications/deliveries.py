"""The deliveries of a webhook: listed, replayed, and made as a test."""

from giornata.control.audit_log.record import record_call
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.notifications.announce import jobless_delivery
from giornata.control.notifications.manage_webhooks import require_webhook
from giornata.control.pages import check_limit, cut, decode_cursor
from giornata.control.ports.user_queries.webhook_store import DeliveryRecord
from giornata.control.timestamps import instant
from giornata.domain.accounts.audit_log import AuditVerb
from giornata.domain.accounts.notifications import DeliveryState
from giornata.domain.errors import Conflict
from giornata.protocol.events import OperatorEvent
from giornata.protocol.project.webhook_endpoints import (
    MOST_REPLAYED,
    ReplayDeliveries,
    Replayed,
    WebhookDelivery,
    WebhookDeliveryPage,
)

TEST_DATA = {"message": "This is a test of the webhook."}


def list_deliveries(
    ctx: Context, caller: Caller, webhook_id: str, *, state: DeliveryState | None, cursor: str | None, limit: int
) -> WebhookDeliveryPage:
    """Return a page of the webhook's deliveries, newest first. Raises Forbidden, NotFound, InvalidInput."""
    check_limit(limit)
    place = decode_cursor(cursor)
    with ctx.store.read() as tx:
        record = require_webhook(tx, caller, webhook_id)
        before = None if place is None else place[0]
        rows = tx.webhook_deliveries.page(record.id, state=state, before=before, limit=limit + 1)
    page, following = cut(rows, limit, lambda each: (each.id, ""))
    return WebhookDeliveryPage(items=[_reply(each) for each in page], next=following)


def replay_deliveries(ctx: Context, caller: Caller, webhook_id: str, request: ReplayDeliveries) -> Replayed:
    """Send ended deliveries again: those that are named, or every dead one, up to a thousand at a time.

    Raises Forbidden, NotFound, and Conflict for a disabled webhook.
    """
    with ctx.store.begin() as tx:
        record = require_webhook(tx, caller, webhook_id)
        if not record.enabled:
            raise Conflict(f"webhook {webhook_id} is disabled: enable it first")
        now_ms, ids = ctx.clock.now_ms(), request.delivery_ids
        replayed = tx.webhook_deliveries.replay(record.id, ids, at_ms=now_ms, limit=MOST_REPLAYED)
        record_call(tx, caller, AuditVerb.WEBHOOK_REPLAY, webhook_id, at_ms=now_ms, changes={"deliveries": replayed})
        return Replayed(replayed=replayed)


def send_test(ctx: Context, caller: Caller, webhook_id: str) -> WebhookDelivery:
    """Send the event `webhook.test` to the webhook, whatever its events are; return the delivery.

    Raises Forbidden, NotFound, and Conflict for a disabled webhook.
    """
    with ctx.store.begin() as tx:
        record = require_webhook(tx, caller, webhook_id)
        if not record.enabled:
            raise Conflict(f"webhook {webhook_id} is disabled: enable it first")
        event_id, now_ms = ctx.names.new("evt"), ctx.clock.now_ms()
        new = jobless_delivery(record, event_id, OperatorEvent.WEBHOOK_TEST, TEST_DATA, at_ms=now_ms)
        tx.webhook_deliveries.add_each([new])
        record_call(tx, caller, AuditVerb.WEBHOOK_TEST, webhook_id, at_ms=now_ms)
        (delivery,) = tx.webhook_deliveries.page(record.id, state=None, before=None, limit=1)
    return _reply(delivery)


def _reply(record: DeliveryRecord) -> WebhookDelivery:
    ended = record.ended_at_ms is not None
    return WebhookDelivery(
        id=record.id,
        event_id=record.event_id,
        type=record.type,
        job_id=record.job_id,
        state=record.state,
        tries=record.tries,
        status=record.status,
        error=record.error,
        created_at=instant(record.created_at_ms),
        next_try_at=None if ended else instant(record.due_at_ms),
        ended_at=None if record.ended_at_ms is None else instant(record.ended_at_ms),
    )
