"""Routes of webhooks and their deliveries."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response, status

from giornata.api.replies.openapi import USER, USER_CHANGE, USER_ITEM
from giornata.api.requests.callers import Ctx, ReadLists, User
from giornata.api.requests.lists import Cursor, Limit
from giornata.control.notifications import deliveries, manage_webhooks
from giornata.domain.accounts.notifications import DeliveryState
from giornata.protocol.project.webhook_endpoints import (
    ChangeWebhook,
    CreateWebhook,
    ReplayDeliveries,
    Replayed,
    RotateWebhook,
    SecretOfWebhook,
    Webhook,
    WebhookDelivery,
    WebhookDeliveryPage,
    WebhookPage,
)
from giornata.protocol.strict_json import Json

router = APIRouter(prefix="/v1/webhooks", tags=["administration"])
WebhookId = Annotated[str, Path(max_length=64)]
State = Annotated[DeliveryState | None, Query(description="Only deliveries in this state.")]


@router.post("", status_code=status.HTTP_201_CREATED, responses=USER_CHANGE)
def create_webhook(ctx: Ctx, caller: User, body: Json[CreateWebhook]) -> SecretOfWebhook:
    """Create a webhook, which sends events to a URL or a mailbox. Only this reply shows the signing secret."""
    return manage_webhooks.create_webhook(ctx, caller, body)


@router.get("", responses=USER, response_model=WebhookPage)
async def list_webhooks(
    ctx: Ctx, lists: ReadLists, caller: User, cursor: Cursor = None, limit: Limit = 100
) -> Response:
    """Return the project's webhooks, newest first."""
    return await lists.page(manage_webhooks.list_webhooks, ctx, caller, cursor, limit)


@router.get("/{webhook_id}", responses=USER_ITEM)
def get_webhook(ctx: Ctx, caller: User, webhook_id: WebhookId) -> Webhook:
    """Return one webhook, with the number of its waiting and dead deliveries."""
    return manage_webhooks.read_webhook(ctx, caller, webhook_id)


@router.patch("/{webhook_id}", responses=USER_ITEM)
def change_webhook(ctx: Ctx, caller: User, webhook_id: WebhookId, body: Json[ChangeWebhook]) -> Webhook:
    """Enable or disable a webhook, or change its events."""
    return manage_webhooks.change_webhook(ctx, caller, webhook_id, body)


@router.delete("/{webhook_id}", responses=USER_ITEM)
def delete_webhook(ctx: Ctx, caller: User, webhook_id: WebhookId) -> Webhook:
    """Delete a webhook and its deliveries."""
    return manage_webhooks.delete_webhook(ctx, caller, webhook_id)


@router.post("/{webhook_id}/rotate", responses=USER_CHANGE)
def rotate_webhook(ctx: Ctx, caller: User, webhook_id: WebhookId, body: Json[RotateWebhook]) -> SecretOfWebhook:
    """Give the webhook a new signing secret. Both secrets sign until the overlap ends."""
    return manage_webhooks.rotate_webhook(ctx, caller, webhook_id, body)


@router.post("/{webhook_id}/test", status_code=status.HTTP_201_CREATED, responses=USER_CHANGE)
def send_test(ctx: Ctx, caller: User, webhook_id: WebhookId) -> WebhookDelivery:
    """Send the event webhook.test to the webhook."""
    return deliveries.send_test(ctx, caller, webhook_id)


@router.post("/{webhook_id}/replay", responses=USER_CHANGE)
def replay_deliveries(ctx: Ctx, caller: User, webhook_id: WebhookId, body: Json[ReplayDeliveries]) -> Replayed:
    """Send ended deliveries again: those that are named, or every dead one."""
    return deliveries.replay_deliveries(ctx, caller, webhook_id, body)


@router.get("/{webhook_id}/deliveries", responses=USER_ITEM, response_model=WebhookDeliveryPage)
async def list_deliveries(
    *,
    ctx: Ctx,
    lists: ReadLists,
    caller: User,
    webhook_id: WebhookId,
    state: State = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    """Return the webhook's deliveries, newest first."""
    return await lists.page(
        deliveries.list_deliveries, ctx, caller, webhook_id, state=state, cursor=cursor, limit=limit
    )
