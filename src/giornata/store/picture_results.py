"""Store results of pictures. A lease that has ended stores nothing, and no picture gets a second result.

Each result gets a place in its order. The order's row is held until the transaction ends, so that places are
committed in their order: who has read up to a place has missed nothing before it.

On PostgreSQL all of it is one statement. SQLite changes one table in a statement, and has one writer as it is.
"""

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.picture_store import PictureKey, PictureOutcome
from giornata.domain.picture import PictureState
from giornata.store.rows import ROWS, row_list, types_of
from giornata.store.schema import attempts, picture_orders, pictures

_GIVEN = ("order_id", "number", "state", "sha256", "size_bytes", "flags", "error", "place")
_RESULT = ("state", "sha256", "size_bytes", "flags", "error")
_LEASE = sa.bindparam("wanted", type_=sa.String())
_LEASED = pictures.c.state == PictureState.LEASED
_LIVE = sa.select(attempts.c.id).where(attempts.c.id == _LEASE, attempts.c.ended_at_ms.is_(None))


def settle_in_one(
    connection: sa.Connection, attempt_id: str, outcomes: Sequence[PictureOutcome]
) -> list[PictureKey] | None:
    """Store the outcomes in one statement; see `giornata.control.ports.picture_store.PictureLeases`."""
    rows = _rows_of(outcomes)
    found = connection.execute(_statement(), {"wanted": attempt_id, ROWS: rows}).all()
    if not found:
        return None
    return [PictureKey(row.order_id, row.number) for row in found if row.order_id is not None]


def settle_step_by_step(
    connection: sa.Connection, attempt_id: str, outcomes: Sequence[PictureOutcome]
) -> list[PictureKey] | None:
    """Store the outcomes in a statement for each step, and a few for each order."""
    if connection.execute(_LIVE, {"wanted": attempt_id}).first() is None:
        return None
    stored = []
    for row in _rows_of(outcomes):
        place = connection.scalar(_LATEST_PLACE, {"of_order": row["order_id"]})
        values = {f"new_{name}": row[name] for name in _RESULT}
        of = {"of_order": row["order_id"], "of_number": row["number"], "wanted": attempt_id}
        changed = connection.execute(_STORE, {**values, **of, "new_place": (place or 0) + 1})
        if changed.rowcount == 1:
            connection.execute(_TAKE_PLACE, {"of_order": row["order_id"], "taken": (place or 0) + 1})
            stored.append(PictureKey(row["order_id"], row["number"]))
    return stored


_LATEST_PLACE = sa.select(picture_orders.c.ended).where(picture_orders.c.order_id == sa.bindparam("of_order"))
_TAKE_PLACE = (
    sa.update(picture_orders)
    .where(picture_orders.c.order_id == sa.bindparam("of_order"))
    .values(ended=sa.bindparam("taken"))
)
_STORE = (
    sa.update(pictures)
    .where(
        pictures.c.order_id == sa.bindparam("of_order"),
        pictures.c.number == sa.bindparam("of_number"),
        pictures.c.lease == _LEASE,
        _LEASED,
    )
    .values({name: sa.bindparam(f"new_{name}") for name in (*_RESULT, "place")})
)


def _rows_of(outcomes: Sequence[PictureOutcome]) -> list[Mapping[str, Any]]:
    """Return the rows by key, numbered from 1 within each order."""
    nth: Counter[str] = Counter()
    rows: list[Mapping[str, Any]] = []
    for each in sorted(outcomes, key=lambda outcome: outcome.key):
        nth[each.key.order_id] += 1
        values = {name: getattr(each, name) for name in _RESULT}
        rows.append({**each.key._asdict(), **values, "place": nth[each.key.order_id]})
    return rows


@functools.cache
def _statement() -> Any:
    """Return the statement for PostgreSQL. Its parts run in the order in which one reads from another."""
    live = _LIVE.with_for_update(key_share=True).cte("live")
    given = sa.select(row_list("postgresql", types_of(pictures, *_GIVEN))).cte("given_rows")
    mine = sa.and_(
        pictures.c.order_id == given.c.order_id,
        pictures.c.number == given.c.number,
        pictures.c.lease == sa.select(live.c.id).scalar_subquery(),
        _LEASED,
    )
    wanted = (
        sa.select(given.c.order_id, sa.func.max(given.c.place).label("places"))
        .where(mine)
        .group_by(given.c.order_id)
        .cte("wanted_places")
    )
    # Locked in the order of their ids: two who hold several must not wait for one another.
    held = (
        sa.select(picture_orders.c.order_id)
        .where(picture_orders.c.order_id.in_(sa.select(wanted.c.order_id)))
        .order_by(picture_orders.c.order_id)
        .with_for_update(key_share=True)
        .cte("held_orders")
    )
    placed = (
        sa.update(picture_orders)
        .where(
            picture_orders.c.order_id == wanted.c.order_id,
            picture_orders.c.order_id.in_(sa.select(held.c.order_id)),
        )
        .values(ended=picture_orders.c.ended + wanted.c.places)
        .returning(picture_orders.c.order_id, (picture_orders.c.ended - wanted.c.places).label("before"))
        .cte("placed")
    )
    values: dict[str, Any] = {name: given.c[name] for name in _RESULT}
    stored = (
        sa.update(pictures)
        .where(mine, placed.c.order_id == given.c.order_id)
        .values({**values, "place": placed.c.before + given.c.place})
        .returning(pictures.c.order_id, pictures.c.number)
        .cte("stored")
    )
    # A row for a lease that lives, even where nothing was stored.
    return sa.select(stored.c.order_id, stored.c.number).select_from(live.outerjoin(stored, sa.true()))
