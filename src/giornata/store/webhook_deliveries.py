"""Queries for the outbox of webhooks and for their deliveries."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.user_queries import webhook_store
from giornata.control.ports.user_queries.records import EventRecord
from giornata.control.ports.user_queries.webhook_store import DeliveryRecord, DueChain, NewDelivery
from giornata.domain.accounts.notifications import DeliveryState
from giornata.protocol.specs import AUDIT_KIND
from giornata.store.database.rows import Queries, columns, insert_rows, record_of
from giornata.store.schema import events, jobs, keys, webhook_cursor, webhook_deliveries, webhooks
from giornata.store.schema.made import HAPPENED_HERE

_D = webhook_deliveries.c
_OPEN = _D.ended_at_ms.is_(None)
_PLACE = sa.func.row_number().over(partition_by=(_D.webhook_id, _D.chain), order_by=_D.id).label("place")
_COLUMNS = columns(webhook_deliveries, DeliveryRecord)
_EVENT = columns(events, EventRecord)
# Everybody who inserts an event holds this lock, from before its id is drawn until its transaction has ended. The
# lock goes after the transaction can be seen.
_WRITERS = sa.text(
    "SELECT virtualtransaction FROM pg_locks WHERE locktype = 'relation' AND granted AND mode = 'RowExclusiveLock' "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
    "AND relation = 'events'::regclass AND pid <> pg_backend_pid()"
)
_OF_AUDITS = sa.exists().where(jobs.c.id == events.c.job_id, jobs.c.kind == AUDIT_KIND)


class WebhookDeliveries(Queries, webhook_store.WebhookDeliveries):
    def newest_event(self) -> int:
        return self._connection.scalar(sa.select(sa.func.coalesce(sa.func.max(events.c.id), 0))) or 0

    def event_writers(self) -> frozenset[str]:
        if self._dialect_name != "postgresql":
            return frozenset()
        return frozenset(self._connection.scalars(_WRITERS))

    def cursor(self) -> int:
        return self._connection.scalar(sa.select(webhook_cursor.c.event_id).with_for_update()) or 0

    def move_cursor(self, event_id: int) -> None:
        self._connection.execute(sa.update(webhook_cursor).values(event_id=event_id))

    def events_between(
        self, after: int, up_to: int, *, project_ids: Collection[str], limit: int
    ) -> list[tuple[str, EventRecord]]:
        query = (
            sa.select(events.c.project_id, *_EVENT)
            .where(
                events.c.id > after,
                events.c.id <= up_to,
                events.c.project_id.in_(sorted(project_ids)),
                HAPPENED_HERE,
                ~_OF_AUDITS,
            )
            .order_by(events.c.id)
            .limit(limit)
        )
        found = self._connection.execute(query).mappings()
        return [(row["project_id"], EventRecord(**{each.name: row[each.name] for each in _EVENT})) for row in found]

    def makers(self, job_ids: Collection[str]) -> Mapping[str, str]:
        maker = sa.func.coalesce(keys.c.user_id, jobs.c.created_by)
        made = jobs.outerjoin(keys, keys.c.id == jobs.c.created_by)
        query = sa.select(jobs.c.id, maker).select_from(made).where(jobs.c.id.in_(sorted(job_ids)))
        return {row[0]: row[1] for row in self._connection.execute(query) if row[1] is not None}

    def add_each(self, deliveries: Sequence[NewDelivery]) -> None:
        if not deliveries:
            return
        more = {"state": DeliveryState.PENDING.value, "tries": 0, "error": ""}
        rows = [{**asdict(each), **more} for each in deliveries]
        insert_rows(self._connection, self._dialect_name, webhook_deliveries, rows)

    def sending(self, *, at_ms: int) -> Mapping[str, int]:
        query = (
            sa.select(_D.webhook_id, sa.func.count(_D.chain.distinct()))
            .where(_OPEN, _D.state == DeliveryState.SENDING, _D.due_at_ms > at_ms)
            .group_by(_D.webhook_id)
        )
        return {row[0]: row[1] for row in self._connection.execute(query)}

    def due_chains(self, *, at_ms: int, most_each: int, not_of: Collection[str], limit: int) -> list[DueChain]:
        placed = (
            sa.select(
                _D.id,
                _D.webhook_id,
                _D.chain,
                _D.due_at_ms,
                _PLACE,
                sa.func.max(_D.tries).over(partition_by=_D.webhook_id).label("most_tries"),
            )
            .join(webhooks, (webhooks.c.id == _D.webhook_id) & webhooks.c.enabled)
            .where(_OPEN, _D.webhook_id.not_in(sorted(not_of)))
            .subquery()
        )
        turn = sa.func.row_number().over(partition_by=placed.c.webhook_id, order_by=(placed.c.due_at_ms, placed.c.id))
        first = sa.select(placed, turn.label("turn")).where(placed.c.place == 1, placed.c.due_at_ms <= at_ms)
        firsts = first.subquery()
        query = (
            sa.select(firsts.c.webhook_id, firsts.c.chain, firsts.c.most_tries)
            .where(firsts.c.turn <= most_each)
            .order_by(firsts.c.due_at_ms, firsts.c.id)
            .limit(limit)
        )
        return [
            DueChain(webhook_id=webhook_id, chain=chain, troubled=tries > 0)
            for webhook_id, chain, tries in self._connection.execute(query)
        ]

    def take(
        self, chains: Sequence[DueChain], *, at_ms: int, until_ms: int, most: int, most_of_digest: int
    ) -> list[DeliveryRecord]:
        wanted = sa.tuple_(_D.webhook_id, _D.chain).in_([(each.webhook_id, each.chain) for each in chains])
        placed = sa.select(*_COLUMNS, _PLACE).where(_OPEN, wanted)
        found = placed.subquery()
        is_digest = found.c.chain == found.c.webhook_id
        here = found.c.place <= sa.case((is_digest, most_of_digest), else_=most)
        query = sa.select(*(found.c[each.name] for each in _COLUMNS)).where(here, found.c.due_at_ms <= at_ms)
        taken = [_delivery(row) for row in self._connection.execute(query.order_by(found.c.id))]
        sending = {"state": DeliveryState.SENDING.value, "due_at_ms": until_ms}
        self._connection.execute(
            sa.update(webhook_deliveries).where(_D.id.in_([each.id for each in taken])).values(**sending)
        )
        return taken

    def delivered(self, delivery_ids: Sequence[int], *, at_ms: int, status: int | None) -> None:
        done = {"state": DeliveryState.DELIVERED.value, "ended_at_ms": at_ms, "status": status, "error": ""}
        change = sa.update(webhook_deliveries).where(_D.id.in_(delivery_ids), _OPEN)
        self._connection.execute(change.values(tries=_D.tries + 1, **done))

    def put_back(self, delivery_ids: Sequence[int], *, taken_until_ms: int, due_at_ms: int, **columns: Any) -> int:
        again = {"state": DeliveryState.PENDING.value, "due_at_ms": due_at_ms, **columns}
        return self._change_taken(delivery_ids, taken_until_ms, again)

    def give_up(self, delivery_ids: Sequence[int], *, taken_until_ms: int, at_ms: int, **columns: Any) -> int:
        dead = {"state": DeliveryState.DEAD.value, "ended_at_ms": at_ms, **columns}
        return self._change_taken(delivery_ids, taken_until_ms, dead)

    def replay(self, webhook_id: str, delivery_ids: Sequence[int] | None, *, at_ms: int, limit: int) -> int:
        which = _D.state == DeliveryState.DEAD if delivery_ids is None else _D.id.in_(delivery_ids)
        some = sa.select(_D.id).where(_D.webhook_id == webhook_id, ~_OPEN, which).order_by(_D.id).limit(limit)
        again = {"state": DeliveryState.PENDING.value, "due_at_ms": at_ms, "tries": 0, "ended_at_ms": None}
        change = sa.update(webhook_deliveries).where(_D.id.in_(some.scalar_subquery()))
        return self._connection.execute(change.values(**again)).rowcount

    def page(
        self, webhook_id: str, *, state: DeliveryState | None, before: int | None, limit: int
    ) -> list[DeliveryRecord]:
        query = sa.select(*_COLUMNS).where(_D.webhook_id == webhook_id).order_by(_D.id.desc()).limit(limit)
        if state is not None:
            query = query.where(_D.state == state)
        if before is not None:
            query = query.where(_D.id < before)
        return [_delivery(row) for row in self._connection.execute(query)]

    def counts(self, webhook_ids: Collection[str]) -> Mapping[str, Mapping[DeliveryState, int]]:
        query = (
            sa.select(_D.webhook_id, _D.state, sa.func.count())
            .where(_D.webhook_id.in_(sorted(webhook_ids)), _D.state != DeliveryState.DELIVERED)
            .group_by(_D.webhook_id, _D.state)
        )
        found: defaultdict[str, dict[DeliveryState, int]] = defaultdict(dict)
        for webhook_id, state, count in self._connection.execute(query):
            found[webhook_id][DeliveryState(state)] = count
        return found

    def drop_ended(self, *, before_ms: int, limit: int) -> int:
        some = sa.select(_D.id).where(_D.ended_at_ms < before_ms).limit(limit).scalar_subquery()
        return self._connection.execute(sa.delete(webhook_deliveries).where(_D.id.in_(some))).rowcount

    def _change_taken(self, delivery_ids: Sequence[int], taken_until_ms: int, values: Mapping[str, Any]) -> int:
        mine = (_D.state == DeliveryState.SENDING) & (_D.due_at_ms == taken_until_ms)
        change = sa.update(webhook_deliveries).where(_D.id.in_(delivery_ids), mine).values(**values)
        return self._connection.execute(change).rowcount


def _delivery(row: sa.Row[Any]) -> DeliveryRecord:
    record = record_of(DeliveryRecord, row)
    return DeliveryRecord(**{**asdict(record), "state": DeliveryState(record.state)})
