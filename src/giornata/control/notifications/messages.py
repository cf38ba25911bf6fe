"""The messages of deliveries, in each format: signed JSON, Slack, Discord, mail."""

import json
from collections.abc import Sequence
from typing import Any

from giornata.control.ports.notifier import OutgoingMessage
from giornata.control.ports.user_queries.webhook_store import DeliveryRecord, WebhookRecord
from giornata.protocol.project.webhook_endpoints import WebhookFormat

DISCORD_CHARACTERS = 2000
SLACK_CHARACTERS = 3000
LINE_CHARACTERS = 300
TOLD = ("step", "name", "error", "reason", "message", "machine_id", "kind", "fleet", "budget", "succeeded", "failed")
"""Fields of an event's data that a line for people repeats, in this order."""


def messages_of(webhook: WebhookRecord, deliveries: Sequence[DeliveryRecord]) -> list[OutgoingMessage]:
    """Return a message for each delivery; of a digest, one message for all of them."""
    if webhook.format is WebhookFormat.STANDARD:
        return [OutgoingMessage(id=each.event_id, body=each.body) for each in deliveries]
    groups = [deliveries] if webhook.daily_digest else [[each] for each in deliveries]
    return [_for_people(webhook, each) for each in groups]


def line_of(delivery: DeliveryRecord) -> str:
    """Return one line that tells people of the event."""
    event = json.loads(delivery.body)
    data: dict[str, Any] = event["data"]
    told = [f"{name} {data[name]}" for name in TOLD if data.get(name) not in {None, ""}]
    about = f" {delivery.job_id}" if delivery.job_id else ""
    line = f"{event['at'][:16].replace('T', ' ')} {delivery.type}{about}" + (f": {', '.join(told)}" if told else "")
    return _cut(" ".join(line.split()), LINE_CHARACTERS)


def _for_people(webhook: WebhookRecord, deliveries: Sequence[DeliveryRecord]) -> OutgoingMessage:
    lines = [line_of(each) for each in deliveries]
    head = f"{len(lines)} events of the day" if webhook.daily_digest else ""
    text = "\n".join([head, *lines] if head else lines)
    if webhook.format is WebhookFormat.SLACK:
        body = json.dumps({"text": _cut(_slack(text), SLACK_CHARACTERS)})
    elif webhook.format is WebhookFormat.DISCORD:
        # Text of jobs must not call for everybody's attention: `@everyone` stays text.
        body = json.dumps({"content": _cut(text, DISCORD_CHARACTERS), "allowed_mentions": {"parse": []}})
    else:
        body = text + "\n"
    return OutgoingMessage(id=deliveries[0].event_id, body=body, subject=f"Giornata: {head or _subject(deliveries)}")


def _subject(deliveries: Sequence[DeliveryRecord]) -> str:
    (only,) = deliveries
    return f"{only.type} {only.job_id or ''}".strip()


def _slack(text: str) -> str:
    """Escape the three characters that Slack gives a meaning."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
