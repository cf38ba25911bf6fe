"""Store results of pictures. A lease that has ended stores nothing, and no picture gets a second result.

Each result gets a place in its order. The order's row is held until the transaction ends, so that places are
committed in their order: who has read up to a place has missed nothing before it.

On PostgreSQL all of it is one statement, for several leases and with their ends. SQLite changes one table in a
statement, and has one writer as it is.
"""

import functools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.node_queries.picture_store import LeaseResults, LeaseSettled, PictureKey
from giornata.domain.generation.picture import PictureState
from giornata.store.database.rows import ROWS, among, row_list, types_of
from giornata.store.pictures.picture_lease_ends import (
    BILLED,
    FREE,
    IS_BEHIND,
    LEASED,
    extend_statement,
    give_back_statement,
    succeeded,
)
from giornata.store.pictures.queued_pictures import AWAITS_ANNOTATION
from giornata.store.schema import attempts, jobs, ledger, picture_orders, pictures

_GIVEN = ("lease", "order_id", "number", "state", "sha256", "size_bytes", "flags", "error")
_RESULT = ("state", "sha256", "size_bytes", "flags", "error")


def settle_in_one(
    connection: sa.Connection, given: Sequence[LeaseResults], *, at_ms: int
) -> Mapping[str, LeaseSettled]:
    """Store the results in one statement, as the port `PictureLeases.settle_each` says."""
    ending = [each.attempt_id for each in given if each.ends]
    values = {"leases": [each.attempt_id for each in given], ROWS: _rows_of(given)}
    values |= {"ending": ending, "until": at_ms} if ending else {}
    machines: dict[str, str] = {}
    stored, had = defaultdict(set), defaultdict(list)
    for lease, machine_id, order_id, number, is_stored in connection.execute(_statement(ends=bool(ending)), values):
        machines[lease] = machine_id
        if order_id is not None:
            key = PictureKey(order_id, number)
            stored[lease].add(key) if is_stored else had[lease].append(key)
    return {
        lease: LeaseSettled(machine_id=machine_id, stored=frozenset(stored[lease]), had=tuple(sorted(had[lease])))
        for lease, machine_id in machines.items()
    }


def settle_step_by_step(
    connection: sa.Connection, given: Sequence[LeaseResults], *, at_ms: int
) -> Mapping[str, LeaseSettled]:
    """Store the results in a statement for each step of each lease."""
    settled = {each.attempt_id: _settle(connection, each) for each in given}
    ending = [each.attempt_id for each in given if each.ends and settled[each.attempt_id] is not None]
    if ending:
        connection.execute(_END, {"leases": ending, "until": at_ms})
        connection.execute(extend_statement("sqlite"), {"wanted": ending, "until": at_ms})
        connection.execute(give_back_statement("sqlite"), {"leases": ending})
    return {lease: result for lease, result in settled.items() if result is not None}


def _settle(connection: sa.Connection, given: LeaseResults) -> LeaseSettled | None:
    rows = connection.execute(_HAD, {"wanted": given.attempt_id}).all()
    if not rows:
        return None
    had = tuple(PictureKey(row.order_id, row.number) for row in rows if row.order_id is not None)
    waiting = {PictureKey(row.order_id, row.number) for row in rows if row.awaits_annotation}
    undrawn = {each.key for each in given.outcomes if each.state is PictureState.SUCCEEDED} & waiting
    outcomes = [each for each in given.outcomes if each.key in had and each.key not in undrawn]
    stored = _rows_of([LeaseResults(attempt_id=given.attempt_id, outcomes=outcomes)])
    if stored:
        counts = Counter(row["order_id"] for row in stored)
        orders = connection.execute(_LATEST_PLACES, {"orders": sorted(counts)})
        latest = {row.order_id: row.ended for row in orders}
        placed = [{**row, "place": latest[row["order_id"]] + row["place"]} for row in stored]
        connection.execute(_STORE, [{f"new_{name}": value for name, value in row.items()} for row in placed])
        places = [{"of_order": order, "taken": latest[order] + count} for order, count in counts.items()]
        connection.execute(_TAKE_PLACES, places)
    keys = frozenset(each.key for each in outcomes)
    return LeaseSettled(machine_id=rows[0].machine_id, stored=keys, had=had)


_HAD = (
    sa.select(
        attempts.c.machine_id, pictures.c.order_id, pictures.c.number, AWAITS_ANNOTATION.label("awaits_annotation")
    )
    .select_from(attempts.outerjoin(pictures, sa.and_(pictures.c.lease == attempts.c.id, LEASED)))
    .where(attempts.c.id == sa.bindparam("wanted"), attempts.c.ended_at_ms.is_(None))
    .order_by(pictures.c.order_id, pictures.c.number)
)
_LATEST_PLACES = sa.select(picture_orders.c.order_id, picture_orders.c.ended).where(
    among("sqlite", picture_orders.c.order_id, "orders")
)
_TAKE_PLACES = (
    sa.update(picture_orders)
    .where(picture_orders.c.order_id == sa.bindparam("of_order"))
    .values(ended=sa.bindparam("taken"))
)
_STORE = (
    sa.update(pictures)
    .where(
        pictures.c.order_id == sa.bindparam("new_order_id"),
        pictures.c.number == sa.bindparam("new_number"),
        pictures.c.lease == sa.bindparam("new_lease"),
        LEASED,
    )
    .values({name: sa.bindparam(f"new_{name}") for name in (*_RESULT, "place")})
)
_END = sa.update(attempts).where(among("sqlite", attempts.c.id, "leases")).values(**succeeded("sqlite"))


def _rows_of(given: Sequence[LeaseResults]) -> list[Mapping[str, Any]]:
    """Return the rows of all leases by key, numbered from 1 within each order."""
    nth: Counter[str] = Counter()
    rows: list[Mapping[str, Any]] = []
    pairs = [(outcome.key, each.attempt_id, outcome) for each in given for outcome in each.outcomes]
    for key, lease, outcome in sorted(pairs, key=lambda pair: pair[:2]):
        nth[key.order_id] += 1
        values = {name: getattr(outcome, name) for name in _RESULT}
        rows.append({"lease": lease, **key._asdict(), **values, "place": nth[key.order_id]})
    return rows


@functools.cache
def _statement(*, ends: bool) -> Any:
    """Return the statement for PostgreSQL. Its parts run in the order in which one reads from another."""
    live = _live(ends=ends)
    given = sa.select(row_list("postgresql", types_of(pictures, *_GIVEN))).cte("given_rows")
    numbered = _numbered(given, live)
    placed = _placed(numbered)
    values: dict[str, Any] = {name: given.c[name] for name in _RESULT}
    stored = (
        sa.update(pictures)
        .where(*_same_picture(given, pictures), *_same_picture(numbered, pictures), pictures.c.lease == given.c.lease)
        .where(placed.c.order_id == given.c.order_id)
        .values({**values, "place": placed.c.before + numbered.c.nth})
        .returning(pictures.c.lease, pictures.c.order_id, pictures.c.number)
        .cte("stored")
    )
    # What the leases had when the statement began: a statement does not see its own changes.
    had = sa.select(pictures.c.lease, pictures.c.order_id, pictures.c.number, sa.false().label("is_stored")).where(
        pictures.c.lease.in_(sa.select(live.c.id)), LEASED
    )
    told = sa.select(stored, sa.true().label("is_stored")).union_all(had).subquery("told")
    # A row for each lease that lives, even where nothing was stored.
    found = sa.select(live.c.id, live.c.machine_id, told.c.order_id, told.c.number, told.c.is_stored)
    statement = found.select_from(live.outerjoin(told, told.c.lease == live.c.id))
    return statement.add_cte(*_ends(live, numbered)) if ends else statement


def _live(*, ends: bool) -> sa.CTE:
    """Hold the leases that live, in the order of their ids; before them the jobs of those that end."""
    conditions: list[Any] = [among("postgresql", attempts.c.id, "leases"), attempts.c.ended_at_ms.is_(None)]
    if ends:
        is_ending = among("postgresql", attempts.c.id, "ending")
        held_jobs = (
            sa.select(jobs.c.id)
            .where(jobs.c.id.in_(sa.select(attempts.c.job_id).where(is_ending)))
            .order_by(jobs.c.id)
            .with_for_update(key_share=True)
            .cte("held_jobs")
        )
        conditions.append(sa.or_(sa.not_(is_ending), attempts.c.job_id.in_(sa.select(held_jobs.c.id))))
    return (
        sa.select(attempts.c.id, attempts.c.machine_id)
        .where(*conditions)
        .order_by(attempts.c.id)
        .with_for_update(key_share=True)
        .cte("live")
    )


def _same_picture(one: Any, other: Any) -> tuple[sa.ColumnElement[bool], sa.ColumnElement[bool]]:
    return one.c.order_id == other.c.order_id, one.c.number == other.c.number


def _numbered(given: sa.CTE, live: sa.CTE) -> sa.CTE:
    """Hold the pictures that get a result, and number them from 1 within each order.

    A picture is looked at again once it is held: the same report may have been stored while this one waited for its
    lease, and a statement does not see by itself what was committed after it began.
    """
    # Orders are locked before their pictures, and in the order of their ids: two must not wait for one another.
    held_orders = (
        sa.select(picture_orders.c.order_id)
        .where(
            picture_orders.c.order_id.in_(sa.select(given.c.order_id).where(given.c.lease.in_(sa.select(live.c.id))))
        )
        .order_by(picture_orders.c.order_id)
        .with_for_update(key_share=True)
        .cte("held_orders")
    )
    held = (
        sa.select(pictures.c.order_id, pictures.c.number)
        .select_from(
            pictures.join(given, sa.and_(*_same_picture(given, pictures), pictures.c.lease == given.c.lease))
        )
        .where(given.c.order_id.in_(sa.select(held_orders.c.order_id)), LEASED)
        .where(given.c.lease.in_(sa.select(live.c.id)))
        .where(sa.or_(given.c.state != sa.literal_column(f"'{PictureState.SUCCEEDED}'"), sa.not_(AWAITS_ANNOTATION)))
        .order_by(pictures.c.order_id, pictures.c.number)
        .with_for_update(key_share=True, of=pictures)
        .cte("held_pictures")
    )
    nth = sa.func.row_number().over(partition_by=held.c.order_id, order_by=held.c.number)
    return sa.select(held, nth.label("nth")).cte("numbered")


def _placed(numbered: sa.CTE) -> sa.CTE:
    """Give places to the results of each order; return the latest place before them."""
    wanted = (
        sa.select(numbered.c.order_id, sa.func.count().label("places"))
        .group_by(numbered.c.order_id)
        .cte("wanted_places")
    )
    return (
        sa.update(picture_orders)
        .where(picture_orders.c.order_id == wanted.c.order_id)
        .values(ended=picture_orders.c.ended + wanted.c.places)
        .returning(picture_orders.c.order_id, (picture_orders.c.ended - wanted.c.places).label("before"))
        .cte("placed")
    )


def _ends(live: sa.CTE, numbered: sa.CTE) -> list[sa.CTE]:
    """End leases: the attempt, its bills, and the pictures without a result here."""
    ended = (
        sa.update(attempts)
        .where(attempts.c.id == live.c.id, among("postgresql", attempts.c.id, "ending"))
        .values(**succeeded("postgresql"))
        .returning(attempts.c.id)
        .cte("ended_leases")
    )
    billed = sa.update(ledger).where(ledger.c.attempt_id == ended.c.id, IS_BEHIND).values(**BILLED).cte("billed")
    # No row may be changed twice by one statement.
    left = (pictures.c.lease == ended.c.id, LEASED, ~sa.exists().where(*_same_picture(numbered, pictures)))
    given_back = sa.update(pictures).where(*left).values(**FREE).cte("given_back")
    return [ended, billed, given_back]
