"""Queries for orders of pictures, and for pictures as users see them."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import islice
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.node_queries import picture_store
from giornata.control.ports.node_queries.picture_store import KeptFrom, OrderSpec, PictureOrderRow, PictureRow
from giornata.control.ports.node_queries.work_rows import QueuedDemand
from giornata.domain.generation.picture import LEASE_KIND, OPEN, PICTURES_LIKE_A_JOB, PictureState, SafetyPolicy
from giornata.domain.jobs.job import JobState
from giornata.domain.jobs.routing import PictureTurns
from giornata.protocol.generation.awaited_annotations import MODEL_BASES
from giornata.protocol.generation.preprocess import PREPROCESS_KIND
from giornata.protocol.node.pictures import PictureFlag
from giornata.store.database.rows import Queries, among, insert_rows, record_of
from giornata.store.pictures.queued_pictures import AWAITS_ANNOTATION, IsQueued
from giornata.store.schema import jobs, picture_failures, picture_orders, pictures, projects
from giornata.store.schema.pictures import OPEN_ORDER

QUEUED = IsQueued()
COLUMNS = tuple(pictures.c[field.name] for field in fields(PictureRow))
# In the words of the partial index. A column of type Boolean would be compared with 1 for SQLite.
IS_OPEN: sa.ColumnElement[bool] = sa.literal_column(f"picture_orders.{OPEN_ORDER}")
ROWS_AT_ONCE = 1000
_NAMES = tuple(column.name for column in COLUMNS)
_ORDER_COLUMNS = tuple(picture_orders.c[field.name] for field in fields(PictureOrderRow))
_priority = sa.bindparam("priority", type_=sa.Integer())
_ORDER_ID = sa.bindparam("wanted", type_=sa.String())


def _turns() -> sa.Select[Any]:
    """Select (what, turn), where `what` is a field of `PictureTurns`. Each row is the head of an index."""
    of_priority = picture_orders.c.priority == _priority
    heads = {
        "head": sa.select(pictures.c.turn).where(QUEUED, pictures.c.priority == _priority).order_by(pictures.c.turn),
        "last": (
            sa.select(picture_orders.c.ends_turn.label("turn"))
            .where(of_priority)
            .order_by(picture_orders.c.ends_turn.desc())
        ),
        "own": (
            sa.select(picture_orders.c.ends_turn.label("turn"))
            .where(of_priority, picture_orders.c.project_id == sa.bindparam("project"))
            .order_by(picture_orders.c.ends_turn.desc())
        ),
    }
    ctes = [(name, head.limit(sa.literal_column("1")).cte(f"{name}_turn")) for name, head in heads.items()]
    rows = (sa.select(sa.literal_column(f"'{name}'").label("what"), cte.c.turn) for name, cte in ctes)
    found = sa.union_all(*rows).subquery("found")
    return sa.select(found.c.what, found.c.turn)


# Made once: building a statement costs more than running it.
_TURNS = _turns()
_BY_ID = sa.select(*_ORDER_COLUMNS).where(picture_orders.c.order_id == _ORDER_ID)
_LOCKED = _BY_ID.with_for_update()
_OF_ORDER = pictures.c.order_id == _ORDER_ID
_COUNTS = sa.select(pictures.c.state, sa.func.count()).where(_OF_ORDER).group_by(pictures.c.state)
_BLOCKED = sa.select(sa.func.count()).where(
    _OF_ORDER, pictures.c.flags.op("&")(sa.literal_column(str(int(PictureFlag.BLOCKED)))) != 0
)
_FIRST_ERROR = (
    sa.select(pictures.c.error)
    .where(_OF_ORDER, pictures.c.state == PictureState.FAILED)
    .order_by(pictures.c.number)
    .limit(1)
)
_TOLD = (
    sa.update(picture_orders)
    .where(picture_orders.c.order_id == _ORDER_ID)
    .values(told=sa.bindparam("up_to"), told_at_ms=sa.bindparam("at"))
)
_UNTOLD = (
    sa.select(picture_orders.c.order_id)
    .where(sa.literal_column("told < ended"), picture_orders.c.told_at_ms < sa.bindparam("before"))
    .order_by(picture_orders.c.told_at_ms)
    .limit(sa.bindparam("most", type_=sa.Integer()))
)
_MINE = (_OF_ORDER, pictures.c.project_id == sa.bindparam("project"))
_MOST = sa.bindparam("most", type_=sa.Integer())
_PAGE = (
    sa.select(*COLUMNS)
    .where(*_MINE, pictures.c.number > sa.bindparam("after", type_=sa.Integer()))
    .order_by(pictures.c.number)
    .limit(_MOST)
)
_ENDED_AFTER = (
    sa.select(*COLUMNS)
    .where(*_MINE, pictures.c.place > sa.bindparam("after", type_=sa.Integer()))
    .order_by(pictures.c.place)
    .limit(_MOST)
)
_FIRST_NOT_TAKEN = (
    sa.select(sa.func.min(pictures.c.turn))
    .where(_OF_ORDER, pictures.c.state.in_((PictureState.QUEUED, PictureState.PAUSED)))
    .scalar_subquery()
)
_GIVE_TURNS_BACK = (
    sa.update(picture_orders)
    .where(picture_orders.c.order_id == _ORDER_ID)
    .values(ends_turn=sa.func.coalesce(_FIRST_NOT_TAKEN, picture_orders.c.ends_turn), is_open=sa.false())
)
_FORGET_FAILURES = sa.delete(picture_failures).where(picture_failures.c.order_id == _ORDER_ID)
_KEPT_FROM = (
    sa.select(
        sa.func.count(picture_failures.c.number.distinct()).label("pictures"),
        sa.func.count(picture_failures.c.machine_id.distinct()).label("machines"),
        sa.func.min(picture_failures.c.at_ms).label("first_at_ms"),
        sa.func.min(pictures.c.error).label("error"),
    )
    .select_from(
        picture_failures.join(
            pictures,
            sa.and_(
                pictures.c.order_id == picture_failures.c.order_id, pictures.c.number == picture_failures.c.number
            ),
        )
    )
    .where(
        picture_failures.c.order_id == _ORDER_ID,
        picture_failures.c.at_ms >= sa.bindparam("since", type_=sa.BigInteger()),
        QUEUED,
    )
)
_runs_a_model = sa.and_(
    jobs.c.kind == sa.literal_column(f"'{PREPROCESS_KIND}'"),
    jobs.c.spec["annotator"].as_string().in_([sa.literal_column(f"'{name}'") for name in MODEL_BASES.values()]),
)
_NODE_KIND = sa.case(
    (_runs_a_model, sa.literal_column(f"'{PREPROCESS_KIND}'")), else_=sa.literal_column(f"'{LEASE_KIND}'")
).label("node_kind")
_waiting = sa.cast(sa.func.sum(picture_orders.c.pictures - picture_orders.c.ended), sa.BigInteger).label("waiting")
# From ix_picture_orders_open: as many rows as there are orders that have not ended.
_DEMAND = (
    sa.select(_NODE_KIND, jobs.c.min_vram_bytes, jobs.c.project_id, _waiting)
    .select_from(picture_orders.join(jobs, jobs.c.id == picture_orders.c.order_id))
    .where(IS_OPEN, jobs.c.state != JobState.PAUSED)
    .group_by(_NODE_KIND, jobs.c.min_vram_bytes, jobs.c.project_id)
)
# As many rows as there are pictures that wait for annotations by models.
_AWAITING = (
    sa.select(pictures.c.min_vram_bytes, pictures.c.project_id, sa.func.count().label("waiting"))
    .where(QUEUED, AWAITS_ANNOTATION)
    .group_by(pictures.c.min_vram_bytes, pictures.c.project_id)
)


class PictureOrders(Queries, picture_store.PictureOrders):
    def turns(self, project_id: str, *, priority: int) -> PictureTurns:
        found = self._connection.execute(_TURNS, {"project": project_id, "priority": priority})
        by_what = {row.what: row.turn for row in found}
        return PictureTurns(head=by_what.get("head"), last=by_what.get("last"), own=by_what.get("own"))

    def add_order(self, order: PictureOrderRow) -> None:
        values = {name: getattr(order, name) for name in PictureOrderRow.__slots__}
        self._connection.execute(sa.insert(picture_orders), values)

    def add_pictures(self, some: Iterable[PictureRow]) -> None:
        walk = iter(some)
        while batch := list(islice(walk, ROWS_AT_ONCE)):
            rows = [{name: getattr(each, name) for name in _NAMES} for each in batch]
            insert_rows(self._connection, self._dialect_name, pictures, rows)

    def order(self, order_id: str, *, lock: bool = False) -> PictureOrderRow | None:
        row = self._connection.execute(_LOCKED if lock else _BY_ID, {"wanted": order_id}).first()
        return None if row is None else record_of(PictureOrderRow, row)

    def counts(self, order_id: str) -> Mapping[PictureState, int]:
        found = self._connection.execute(_COUNTS, {"wanted": order_id})
        return {PictureState(state): count for state, count in found}

    def blocked(self, order_id: str) -> int:
        return self._connection.scalar(_BLOCKED, {"wanted": order_id}) or 0

    def first_error(self, order_id: str) -> str | None:
        return self._connection.scalar(_FIRST_ERROR, {"wanted": order_id})

    def kept_from(self, order_id: str, *, since_ms: int) -> KeptFrom | None:
        found = self._connection.execute(_KEPT_FROM, {"wanted": order_id, "since": since_ms}).one()
        return record_of(KeptFrom, found) if found.pictures else None

    def demand(self) -> list[QueuedDemand]:
        drawn = [(row.node_kind, row) for row in self._connection.execute(_DEMAND)]
        annotated = [(PREPROCESS_KIND, row) for row in self._connection.execute(_AWAITING)]
        return [
            QueuedDemand(
                kind=kind,
                min_vram_bytes=row.min_vram_bytes,
                project_id=row.project_id,
                count=-(-row.waiting // PICTURES_LIKE_A_JOB),
            )
            for kind, row in (*drawn, *annotated)
            if row.waiting > 0
        ]

    def note_told(self, order_id: str, *, told: int, at_ms: int) -> None:
        self._connection.execute(_TOLD, {"wanted": order_id, "up_to": told, "at": at_ms})

    def untold(self, *, told_before_ms: int, limit: int) -> Sequence[str]:
        return list(self._connection.scalars(_UNTOLD, {"before": told_before_ms, "most": limit}))

    def close_order(self, order_id: str, *, state: PictureState = PictureState.CANCELED) -> int:
        self._connection.execute(_GIVE_TURNS_BACK, {"wanted": order_id})
        self._connection.execute(_FORGET_FAILURES, {"wanted": order_id})
        return self._move(order_id, OPEN, state)

    def pause(self, order_ids: Sequence[str]) -> int:
        return sum(self._move(each, (PictureState.QUEUED,), PictureState.PAUSED) for each in sorted(order_ids))

    def resume(self, order_ids: Sequence[str]) -> int:
        return sum(self._move(each, (PictureState.PAUSED,), PictureState.QUEUED) for each in sorted(order_ids))

    def specs(self, order_ids: Sequence[str]) -> Mapping[str, OrderSpec]:
        found = self._connection.execute(_specs(self._dialect_name), {"orders": list(order_ids)})
        return {row.id: _spec_of(row) for row in found}

    def page(self, order_id: str, *, project_id: str, after: int, limit: int) -> Sequence[PictureRow]:
        return self._rows(_PAGE, order_id, project_id, after, limit)

    def ended_after(self, order_id: str, *, project_id: str, place: int, limit: int) -> Sequence[PictureRow]:
        return self._rows(_ENDED_AFTER, order_id, project_id, place, limit)

    def ended_heads(self, order_ids: Sequence[str]) -> Mapping[str, int]:
        found = self._connection.execute(_ended_heads(self._dialect_name), {"orders": list(order_ids)})
        return {row.order_id: row.ended for row in found}

    def _rows(
        self, query: sa.Select[Any], order_id: str, project_id: str, after: int, limit: int
    ) -> list[PictureRow]:
        values = {"wanted": order_id, "project": project_id, "after": after, "most": limit}
        return [picture_of(row) for row in self._connection.execute(query, values)]

    def _move(self, order_id: str, sources: Sequence[PictureState], target: PictureState) -> int:
        return self._connection.execute(_moved(tuple(sources), target), {"wanted": order_id}).rowcount


@functools.cache
def _moved(sources: tuple[PictureState, ...], target: PictureState) -> sa.Update:
    """Return the change of all pictures of an order that are in one of these states. They are locked by number, in
    the order in which everybody locks several."""
    mine = pictures.alias("mine")
    numbers = (
        sa.select(mine.c.number)
        .where(mine.c.order_id == _ORDER_ID, mine.c.state.in_(sources))
        .order_by(mine.c.number)
        .with_for_update()
    )
    # Asked again: who waited for a lock finds the state that the other left.
    still = pictures.c.state.in_(sources)
    return sa.update(pictures).where(_OF_ORDER, pictures.c.number.in_(numbers), still).values(state=target)


@functools.cache
def _specs(dialect_name: str) -> sa.Select[Any]:
    found = sa.select(jobs.c.id, jobs.c.kind, jobs.c.spec, projects.c.safety)
    of_project = jobs.join(projects, projects.c.id == jobs.c.project_id)
    return found.select_from(of_project).where(among(dialect_name, jobs.c.id, "orders"))


@functools.cache
def _ended_heads(dialect_name: str) -> sa.Select[Any]:
    found = sa.select(picture_orders.c.order_id, picture_orders.c.ended)
    return found.where(among(dialect_name, picture_orders.c.order_id, "orders"))


def _spec_of(row: Any) -> OrderSpec:
    return OrderSpec(id=row.id, kind=row.kind, spec=row.spec, safety=SafetyPolicy(row.safety))


def picture_of(row: Any) -> PictureRow:
    """Return the picture of a row that has the columns COLUMNS."""
    values = dict(zip(_NAMES, row, strict=True))
    return PictureRow(**(values | {"state": PictureState(values["state"])}))
