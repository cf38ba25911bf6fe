"""Queries for leases of pictures. Every write of a node says WHERE the lease has not ended and has the picture."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.node_queries import picture_store
from giornata.control.ports.node_queries.picture_store import (
    LeaseBill,
    LeaseResults,
    LeaseSettled,
    PictureKey,
    PictureRow,
    PicturesWanted,
)
from giornata.control.ports.node_queries.work_rows import AttemptRow
from giornata.domain.generation.picture import PictureState
from giornata.store.database.rows import ROWS, Queries, insert_for, insert_rows, row_list, types_of
from giornata.store.pictures.picture_claiming import first_statement, picture_query, take_statement
from giornata.store.pictures.picture_lease_ends import FREE, LEASED, extend_statement, give_back_statement
from giornata.store.pictures.picture_orders import COLUMNS, QUEUED, picture_of
from giornata.store.pictures.picture_results import settle_in_one, settle_step_by_step
from giornata.store.schema import attempts, ledger, picture_failures, picture_orders, pictures

_LEASE = sa.bindparam("wanted", type_=sa.String())
STILL_TO_DRAW = sa.and_(pictures.c.lease == _LEASE, LEASED)
# Made once: building a statement costs more than running it.
_OF_LEASE = sa.select(*COLUMNS).where(STILL_TO_DRAW).order_by(pictures.c.order_id, pictures.c.number)
_LIVE = (attempts.c.id == _LEASE, attempts.c.ended_at_ms.is_(None))
_OF_LIVE_LEASE = (
    sa.select(*COLUMNS)
    .select_from(attempts.outerjoin(pictures, sa.and_(pictures.c.lease == attempts.c.id, LEASED)))
    .where(*_LIVE)
    .order_by(pictures.c.order_id, pictures.c.number)
)
_ORDERS_OF_LEASE = (
    sa.select(picture_orders.c.order_id)
    .where(picture_orders.c.order_id.in_(sa.select(pictures.c.order_id).where(STILL_TO_DRAW)))
    .order_by(picture_orders.c.order_id)
    .with_for_update()
)
_OF_KEY = (pictures.c.order_id == sa.bindparam("of_order"), pictures.c.number == sa.bindparam("of_number"))
_NEXT_PLACE = (
    sa.update(picture_orders)
    .where(picture_orders.c.order_id == sa.bindparam("of_order"))
    .values(ended=picture_orders.c.ended + 1)
    .returning(picture_orders.c.ended)
)
_FAIL = (
    sa.update(pictures)
    .where(*_OF_KEY, pictures.c.state.in_((PictureState.QUEUED, PictureState.PAUSED)))
    .values(state=PictureState.FAILED, error=sa.bindparam("why"), place=sa.bindparam("at_place"))
)


_OF_BATCH = (
    sa.select(*COLUMNS)
    .where(pictures.c.batch_key == sa.bindparam("batch", type_=sa.String()))
    .order_by(pictures.c.order_id, pictures.c.number)
    .with_for_update(skip_locked=True)
)
_QUEUED_OF_BATCH = _OF_BATCH.where(QUEUED)
_LEASED_OF_BATCH = _OF_BATCH.where(STILL_TO_DRAW)


class PictureLeases(Queries, picture_store.PictureLeases):
    def claimable(self, wanted: PicturesWanted) -> bool:
        return self.head_priority(wanted) is not None

    def head_priority(self, wanted: PicturesWanted) -> int | None:
        key, values = picture_query(wanted)
        if not key.bases and not key.one_batch:
            return None
        found: int | None = self._connection.scalar(first_statement(key), {**values})
        return found

    def take(self, wanted: PicturesWanted, *, lease: str) -> list[PictureRow]:
        key, values = picture_query(wanted)
        if not key.bases and not key.one_batch:
            return []
        taken = [
            picture_of(row) for row in self._connection.execute(take_statement(key), {**values, "new_lease": lease})
        ]
        return sorted(taken, key=lambda each: (-each.priority, each.turn, each.key))

    def begin(self, attempt: AttemptRow, request_id: str, bills: Sequence[LeaseBill]) -> None:
        row = {name: getattr(attempt, name) for name in AttemptRow.__slots__} | {"request_id": request_id}
        rows = [
            {
                "attempt_id": attempt.id,
                "seq": number,
                "project_id": bill.project_id,
                "job_id": bill.order_id,
                "from_ms": attempt.started_at_ms,
                "to_ms": attempt.started_at_ms,
                "price_micro_usd_per_hour": bill.price_micro_usd_per_hour,
                "amount_micro_usd": 0,
            }
            for number, bill in enumerate(bills)
        ]
        if self._dialect_name == "postgresql":
            self._connection.execute(_begin_in_one(tuple(row)), {**row, ROWS: rows})
            return
        insert_rows(self._connection, self._dialect_name, attempts, [row])
        insert_rows(self._connection, self._dialect_name, ledger, rows)

    def extend_bills(self, attempt_ids: Sequence[str], *, to_ms: int) -> None:
        if attempt_ids:
            values = {"wanted": list(attempt_ids), "until": to_ms}
            self._connection.execute(extend_statement(self._dialect_name), values)

    def lock_orders(self, attempt_id: str) -> list[str]:
        return list(self._connection.scalars(_ORDERS_OF_LEASE, {"wanted": attempt_id}))

    def of_lease(self, attempt_id: str) -> list[PictureRow]:
        return [picture_of(row) for row in self._connection.execute(_OF_LEASE, {"wanted": attempt_id})]

    def of_live_lease(self, attempt_id: str) -> list[PictureRow] | None:
        rows = self._connection.execute(_OF_LIVE_LEASE, {"wanted": attempt_id}).all()
        return [picture_of(row) for row in rows if row.order_id is not None] if rows else None

    def settle_each(self, given: Sequence[LeaseResults], *, at_ms: int) -> Mapping[str, LeaseSettled]:
        how = settle_in_one if self._dialect_name == "postgresql" else settle_step_by_step
        return how(self._connection, given, at_ms=at_ms)

    def standing(self, attempt_id: str, keys: Sequence[PictureKey]) -> Mapping[PictureKey, str | None]:
        statement = _standing(self._dialect_name)
        found = self._connection.execute(statement, {"wanted": attempt_id, ROWS: _as_rows(keys)})
        return {PictureKey(row.order_id, row.number): row.sha256 for row in found}

    def give_back(
        self,
        attempt_id: str,
        *,
        keys: Sequence[PictureKey] | None = None,
        together: int | None = None,
        fruitless: bool,
        error: str | None = None,
    ) -> list[PictureRow]:
        given = {"some": keys is not None, "bounded": together is not None, "told": error is not None}
        statement = _give_back(self._dialect_name, **given, fruitless=fruitless)
        values: dict[str, Any] = {"wanted": attempt_id}
        values |= {} if keys is None else {ROWS: _as_rows(keys)}
        values |= {} if together is None else {"bound": together}
        values |= {} if error is None else {"why": error}
        return [picture_of(row) for row in self._connection.execute(statement, values)]

    def awaiting(self, batch_key: str, *, lease: str) -> list[PictureRow]:
        values = {"batch": batch_key, "wanted": lease}
        queued = [picture_of(row) for row in self._connection.execute(_QUEUED_OF_BATCH, values)]
        leased = [picture_of(row) for row in self._connection.execute(_LEASED_OF_BATCH, values)]
        return sorted([*queued, *leased], key=lambda each: each.key)

    def queue_as(self, keys: Sequence[PictureKey], *, batch_key: str, base_key: str) -> None:
        values = {ROWS: _as_rows(keys), "new_batch": batch_key, "new_base": base_key}
        self._connection.execute(_queue_as(self._dialect_name), values)

    def give_back_rest(self, attempt_ids: Sequence[str]) -> int:
        values = {"leases": list(attempt_ids)}
        return self._connection.execute(give_back_statement(self._dialect_name), values).rowcount

    def note_failures(
        self, keys: Sequence[PictureKey], *, machine_id: str, at_ms: int, tries: int, min_vram_bytes: int = 0
    ) -> list[PictureRow]:
        if not keys:
            return []
        insert = insert_for(self._dialect_name, picture_failures)
        upsert = insert.on_conflict_do_update(index_elements=[*picture_failures.primary_key], set_={"at_ms": at_ms})
        rows = [{**row, "machine_id": machine_id, "at_ms": at_ms} for row in _as_rows(keys)]
        self._connection.execute(upsert, rows)
        values = {ROWS: _as_rows(keys), "more": tries, "memory": min_vram_bytes}
        return [picture_of(row) for row in self._connection.execute(_tried(self._dialect_name), values)]

    def fail(self, keys: Sequence[PictureKey], *, error: str) -> None:
        for order_id, number in sorted(keys):
            place = self._connection.scalar(_NEXT_PLACE, {"of_order": order_id})
            values = {"of_order": order_id, "of_number": number, "why": error, "at_place": place}
            self._connection.execute(_FAIL, values)


def _as_rows(keys: Sequence[PictureKey]) -> list[dict[str, Any]]:
    return [{"order_id": order_id, "number": number} for order_id, number in sorted(keys)]


@functools.cache
def _begin_in_one(names: tuple[str, ...]) -> sa.Insert:
    """Return one statement for PostgreSQL; foreign keys are looked at when all of it has run."""
    attempt = sa.insert(attempts).values({name: sa.bindparam(name, type_=attempts.c[name].type) for name in names})
    given = row_list("postgresql", types_of(ledger, *(column.name for column in ledger.c)))
    bills = sa.select(*(given.c[column.name] for column in ledger.c))
    named = [column.name for column in ledger.c]
    insert = sa.insert(ledger).from_select(named, bills, include_defaults=False).inline()
    return insert.add_cte(attempt.inline().cte("into_attempts"))


def _given(dialect_name: str) -> Any:
    return row_list(dialect_name, types_of(pictures, "order_id", "number"))


def _same(given: Any) -> sa.ColumnElement[bool]:
    return sa.and_(pictures.c.order_id == given.c.order_id, pictures.c.number == given.c.number)


@functools.cache
def _standing(dialect_name: str) -> sa.Select[Any]:
    given = _given(dialect_name)
    return sa.select(pictures.c.order_id, pictures.c.number, pictures.c.sha256).where(
        _same(given), pictures.c.lease == _LEASE, pictures.c.state == PictureState.SUCCEEDED
    )


@functools.cache
def _give_back(dialect_name: str, *, some: bool, bounded: bool, told: bool, fruitless: bool) -> Any:
    values = dict(FREE)
    if bounded:
        values["together"] = sa.bindparam("bound", type_=sa.SmallInteger())
    if fruitless:
        values["fruitless"] = pictures.c.fruitless + 1
    if told:
        values["error"] = sa.bindparam("why")
    statement = sa.update(pictures).where(STILL_TO_DRAW)
    if some:
        statement = statement.where(_same(_given(dialect_name)))
    return statement.values(values).returning(*COLUMNS)


@functools.cache
def _queue_as(dialect_name: str) -> Any:
    values = {**FREE, "batch_key": sa.bindparam("new_batch"), "base_key": sa.bindparam("new_base")}
    is_open = pictures.c.state.in_((PictureState.QUEUED, PictureState.LEASED))
    return sa.update(pictures).where(_same(_given(dialect_name)), is_open).values(values)


@functools.cache
def _tried(dialect_name: str) -> Any:
    memory = sa.bindparam("memory", type_=sa.BigInteger())
    larger = sa.case((pictures.c.min_vram_bytes < memory, memory), else_=pictures.c.min_vram_bytes)
    values = {"tries": pictures.c.tries + sa.bindparam("more", type_=sa.SmallInteger()), "min_vram_bytes": larger}
    return sa.update(pictures).where(_same(_given(dialect_name))).values(values).returning(*COLUMNS)
