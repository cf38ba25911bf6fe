"""Turn events into deliveries of webhooks. The table of events is the outbox.

An event is written in the transaction of what happened, as ever, and costs its writer nothing more. This loop reads
the events behind a cursor and writes a delivery for each webhook that wants one; cursor and deliveries are one
transaction, so each event is turned once.

On PostgreSQL an event's id is drawn before its transaction commits, so a late commit may bring an event below one
that was seen. The cursor therefore moves to an event only when every transaction that could have drawn an earlier
id has ended (`EventHorizon`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from giornata.control.access.install import signing_key_in
from giornata.control.access.machine_names import MachineNames
from giornata.control.context import Context
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.records import EventRecord
from giornata.control.ports.user_queries.webhook_store import NewDelivery, WebhookRecord
from giornata.control.timestamps import instant
from giornata.domain.accounts.notifications import matches, next_digest_ms
from giornata.protocol.project.webhooks import Delivery

EVENTS_AT_ONCE = 500
MOST_STEPS = 40


@dataclass(slots=True)
class EventHorizon:
    """The newest event below which nothing can appear any more.

    `look` notes the newest event and the writers of events. When all of these writers have ended, no event up to
    the noted one can appear. New writers draw later ids.
    """

    _noted: int = 0
    _writers: frozenset[str] = frozenset()
    settled: int = 0

    def look(self, tx: Transaction) -> int:
        """Return the newest settled event. Events up to it are seen by transactions that begin afterwards."""
        newest = tx.webhook_deliveries.newest_event()
        # Asked after the newest event was: whoever has drawn an earlier id is among them, or has ended.
        writers = tx.webhook_deliveries.event_writers()
        if newest < self.settled:  # the newest events were deleted, and SQLite gives their ids again
            self._noted, self.settled = 0, newest
        if not writers & self._writers:
            self.settled = max(self.settled, self._noted)
            self._noted, self._writers = newest, writers
        if not self._writers:
            self.settled = max(self.settled, self._noted)
        return self.settled


class FanOut:
    """The loop that turns events into deliveries. One server at a time runs it."""

    def __init__(self) -> None:
        self._horizon = EventHorizon()

    def __call__(self, ctx: Context) -> int:
        """Turn what can be turned; return how many deliveries were written."""
        with ctx.store.read() as tx:
            webhooks = tx.webhooks.enabled()
            settled = self._horizon.look(tx) if webhooks else 0
        written = 0
        for _ in range(MOST_STEPS if webhooks else 0):
            count, more = _step(ctx, webhooks, settled)
            written += count
            if not more:
                break
        return written


def _step(ctx: Context, webhooks: Sequence[WebhookRecord], settled: int) -> tuple[int, bool]:
    """Turn the next events up to `settled`; return how many deliveries there are, and whether events are left."""
    now_ms = ctx.clock.now_ms()
    with ctx.store.begin() as tx:
        cursor = tx.webhook_deliveries.cursor()
        after = max(cursor, min(each.begins_after for each in webhooks))
        if after >= settled:
            _follow_deleted(tx, cursor)
            return 0, False
        projects = {each.project_id for each in webhooks}
        found = tx.webhook_deliveries.events_between(after, settled, project_ids=projects, limit=EVENTS_AT_ONCE)
        key = signing_key_in(tx, ctx) if found else b""
        makers = _makers(tx, webhooks, found)
        deliveries = [
            _delivery(each, event, MachineNames(project_id=project_id, key=key), at_ms=now_ms)
            for project_id, event in found
            for each in webhooks
            if _wants(each, project_id, event) and each.user_id in {None, makers.get(event.job_id)}
        ]
        tx.webhook_deliveries.add_each(deliveries)
        more = len(found) == EVENTS_AT_ONCE
        tx.webhook_deliveries.move_cursor(found[-1][1].id if more else settled)
    return len(deliveries), more


def _follow_deleted(tx: Transaction, cursor: int) -> None:
    """Move the cursor back when the newest events were deleted: SQLite gives their ids again."""
    newest = tx.webhook_deliveries.newest_event()
    if newest < cursor:
        tx.webhook_deliveries.move_cursor(newest)


def _makers(
    tx: Transaction, webhooks: Sequence[WebhookRecord], found: Sequence[tuple[str, EventRecord]]
) -> Mapping[str, str]:
    """Return the person behind each job whose own webhooks may get its events."""
    people = [each for each in webhooks if each.user_id is not None]
    told = {event.job_id for project_id, event in found if any(_wants(each, project_id, event) for each in people)}
    return tx.webhook_deliveries.makers(told) if told else {}


def _wants(webhook: WebhookRecord, project_id: str, event: EventRecord) -> bool:
    mine = webhook.project_id == project_id and webhook.job_id in {None, event.job_id}
    return mine and event.id > webhook.begins_after and matches(webhook.events, event.type)


def _delivery(webhook: WebhookRecord, event: EventRecord, names: MachineNames, *, at_ms: int) -> NewDelivery:
    event_id = f"evt_{event.id}"
    body = Delivery(
        id=event_id,
        type=event.type,
        job_id=event.job_id,
        at=instant(event.at_ms),
        data=dict(names.event_data(event.data)),
    )
    return NewDelivery(
        webhook_id=webhook.id,
        chain=webhook.id if webhook.daily_digest else event.job_id,
        event_id=event_id,
        job_id=event.job_id,
        type=event.type,
        body=body.model_dump_json(),
        due_at_ms=next_digest_ms(at_ms) if webhook.daily_digest else at_ms,
        created_at_ms=at_ms,
    )
