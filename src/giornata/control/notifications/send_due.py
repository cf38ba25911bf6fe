"""Send deliveries that are due, and note what became of them.

A delivery is taken for a time, as a job is leased: a server that ends while it sends leaves the delivery to the
others, so each delivery comes at least once. Deliveries of one job go one after the other. A webhook has a bounded
number of chains on their way, and one whose last try failed has one: a target that hangs delays no other.

The messages are signed JSON, or texts for Slack, Discord and mail.
"""

import json
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from giornata.control.context import Context
from giornata.control.notifications.sealed_target import unseal
from giornata.control.ports.notifier import MessageRun, OutgoingMessage, RunOutcome, SendFailure
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.webhook_store import DeliveryRecord, DueChain, WebhookRecord
from giornata.domain.accounts.notifications import retry_delay_s
from giornata.domain.errors import Unavailable
from giornata.protocol.project.webhook_endpoints import WebhookFormat

DISCORD_CHARACTERS = 2000
SLACK_CHARACTERS = 3000
LINE_CHARACTERS = 300
TOLD = ("step", "name", "error", "reason", "message", "machine_id", "kind", "fleet", "budget", "succeeded", "failed")
"""Fields of an event's data that a line for people repeats, in this order."""
MOST_OF_CHAIN = 16
MOST_OF_DIGEST = 500
MARGIN_S = 30.0
"""A server that is slow to note an outcome has so long before another takes the delivery."""
TROUBLED_SHARE = 2
"""Webhooks whose last try failed get at most one of so many of the free runs."""
ENDED_AT_ONCE = 1000
ERROR_CHARACTERS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenRun:
    """Deliveries of one chain that this server sends until `until_ms`."""

    webhook: WebhookRecord
    deliveries: Sequence[DeliveryRecord]
    until_ms: int


def send_due(ctx: Context) -> int:
    """Begin to send what is due, as far as there is room; return how many deliveries.

    One server at a time runs it.
    """
    room = ctx.notifier.room
    if not room:
        return 0
    runs = _take(ctx, room)
    for run in runs:
        _send(ctx, run)
    return sum(len(run.deliveries) for run in runs)


def _take(ctx: Context, room: int) -> list[TakenRun]:
    now_ms = ctx.clock.now_ms()
    until_ms = now_ms + round((ctx.notifier.longest_run_s + MARGIN_S) * 1000)
    with ctx.store.begin() as tx:
        chains = _due(tx, ctx, room, now_ms)
        if not chains:
            return []
        taken = tx.webhook_deliveries.take(
            chains, at_ms=now_ms, until_ms=until_ms, most=MOST_OF_CHAIN, most_of_digest=MOST_OF_DIGEST
        )
        webhooks = tx.webhooks.of_ids({each.webhook_id for each in taken})
    grouped: defaultdict[tuple[str, str], list[DeliveryRecord]] = defaultdict(list)
    for each in taken:
        grouped[each.webhook_id, each.chain].append(each)
    return [
        TakenRun(webhook=webhooks[webhook_id], deliveries=each, until_ms=until_ms)
        for (webhook_id, _), each in grouped.items()
    ]


def _due(tx: Transaction, ctx: Context, room: int, now_ms: int) -> list[DueChain]:
    """Return the chains that may begin now."""
    most = ctx.policy.max_runs_per_webhook
    sending = tx.webhook_deliveries.sending(at_ms=now_ms)
    full = {webhook_id for webhook_id, count in sending.items() if count >= most}
    found = tx.webhook_deliveries.due_chains(at_ms=now_ms, most_each=most, not_of=full, limit=4 * room)
    return chosen(found, sending, most=most, room=room)


def chosen(found: Sequence[DueChain], sending: Mapping[str, int], *, most: int, room: int) -> list[DueChain]:
    """Return the chains that may begin: `most` of a webhook, one of a troubled one, and a share for those."""
    busy, begun = dict(sending), list[DueChain]()
    troubled_room = max(1, room // TROUBLED_SHARE)
    for each in found:
        count = busy.get(each.webhook_id, 0)
        if len(begun) >= room or count >= (1 if each.troubled else most) or (each.troubled and not troubled_room):
            continue
        troubled_room -= each.troubled
        busy[each.webhook_id] = count + 1
        begun.append(each)
    return begun


def _send(ctx: Context, run: TakenRun) -> None:
    try:
        held = unseal(ctx.sealer, run.webhook)
    except Unavailable as error:
        settle(ctx, run, RunOutcome(sent=0, failure=SendFailure(message=str(error))))
        return
    secrets = held.valid_secrets(run.webhook, at_ms=ctx.clock.now_ms())
    messages = messages_of(run.webhook, run.deliveries)
    going = MessageRun(format=run.webhook.format, target=held.target, secrets=secrets, messages=messages)
    ctx.notifier.send(going, lambda outcome: settle(ctx, run, outcome))


def settle(ctx: Context, run: TakenRun, outcome: RunOutcome) -> None:
    """Note what became of a run: delivered, due again later, or dead. A target that is gone disables its webhook."""
    now_ms = ctx.clock.now_ms()
    whole = run.webhook.daily_digest  # its deliveries are one message
    sent = len(run.deliveries) if whole and outcome.sent else outcome.sent
    done, rest = run.deliveries[:sent], run.deliveries[sent:]
    failed = (rest if whole else rest[:1]) if outcome.failure else []
    with ctx.store.begin() as tx:
        if done:
            tx.webhook_deliveries.delivered([each.id for each in done], at_ms=now_ms, status=outcome.status)
        if failed and outcome.failure is not None:
            _note_failure(tx, run, failed, outcome.failure, now_ms)
        unsent = [each.id for each in rest[len(failed) :]]
        if unsent:
            tx.webhook_deliveries.put_back(unsent, taken_until_ms=run.until_ms, due_at_ms=now_ms)


def _note_failure(
    tx: Transaction, run: TakenRun, failed: Sequence[DeliveryRecord], failure: SendFailure, now_ms: int
) -> None:
    ids, tries = [each.id for each in failed], failed[0].tries + 1
    error = failure.message[:ERROR_CHARACTERS]
    said = {"tries": tries, "status": failure.status, "error": error}
    delay_s = None if failure.gone else retry_delay_s(tries, draw=random.random())
    if delay_s is None:
        mine = tx.webhook_deliveries.give_up(ids, taken_until_ms=run.until_ms, at_ms=now_ms, **said)
    else:
        due_ms = now_ms + round(delay_s * 1000)
        mine = tx.webhook_deliveries.put_back(ids, taken_until_ms=run.until_ms, due_at_ms=due_ms, **said)
    if mine and failure.gone:
        tx.webhooks.update(run.webhook.id, enabled=False, disabled_because=f"the target wants no more: {error}"[:500])


def drop_old(ctx: Context) -> int:
    """Delete deliveries that ended long ago; return how many."""
    before_ms = ctx.clock.now_ms() - round(ctx.policy.webhook_deliveries_kept_s * 1000)
    with ctx.store.begin() as tx:
        return tx.webhook_deliveries.drop_ended(before_ms=before_ms, limit=ENDED_AT_ONCE)


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
