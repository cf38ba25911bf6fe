"""The HTTP calls of webhooks."""

from collections.abc import Iterator, Sequence

from giornata.client.calls.operator_calls import OperatorCalls, quoted
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

PATH = "/v1/webhooks"


class WebhookCalls(OperatorCalls):
    """The part of `giornata.client.client.Client` that is about webhooks. Every call takes an admin key."""

    def create_webhook(self, webhook: CreateWebhook) -> SecretOfWebhook:
        """Send events to a target from now on; the reply shows the signing secret this once.

        Raises InvalidInput, and Conflict for a project that has as many webhooks as it may.
        """
        return self._connection.call("POST", PATH, SecretOfWebhook, body=webhook, repeatable=False)

    def webhooks(self) -> Iterator[Webhook]:
        """Yield the project's webhooks, newest first."""
        return self._pages(PATH, WebhookPage)

    def webhook(self, webhook_id: str) -> Webhook:
        """Return one webhook. Raises NotFound; so do the calls below."""
        return self._get(f"{PATH}/{quoted(webhook_id)}", Webhook)

    def change_webhook(self, webhook_id: str, change: ChangeWebhook) -> Webhook:
        """Enable or disable a webhook, or change its events."""
        return self._connection.call("PATCH", f"{PATH}/{quoted(webhook_id)}", Webhook, body=change)

    def delete_webhook(self, webhook_id: str) -> Webhook:
        """Delete a webhook and its deliveries."""
        return self._connection.call("DELETE", f"{PATH}/{quoted(webhook_id)}", Webhook, repeatable=False)

    def rotate_webhook(self, webhook_id: str, rotation: RotateWebhook | None = None) -> SecretOfWebhook:
        """Give the webhook a new signing secret. The old one signs beside it, for a day if not told otherwise."""
        path, body = f"{PATH}/{quoted(webhook_id)}/rotate", rotation or RotateWebhook()
        return self._connection.call("POST", path, SecretOfWebhook, body=body, repeatable=False)

    def test_webhook(self, webhook_id: str) -> WebhookDelivery:
        """Send the event webhook.test. Raises Conflict for a disabled webhook."""
        path = f"{PATH}/{quoted(webhook_id)}/test"
        return self._connection.call("POST", path, WebhookDelivery, repeatable=False)

    def webhook_deliveries(self, webhook_id: str, *, state: str | None = None) -> Iterator[WebhookDelivery]:
        """Yield the webhook's deliveries, newest first, of all states or of one."""
        return self._pages(f"{PATH}/{quoted(webhook_id)}/deliveries", WebhookDeliveryPage, {"state": state})

    def replay_deliveries(self, webhook_id: str, delivery_ids: Sequence[int] | None = None) -> int:
        """Send ended deliveries again, or every dead one; return how many. Raises Conflict for a disabled webhook."""
        body = ReplayDeliveries(delivery_ids=None if delivery_ids is None else list(delivery_ids))
        path = f"{PATH}/{quoted(webhook_id)}/replay"
        return self._connection.call("POST", path, Replayed, body=body).replayed
