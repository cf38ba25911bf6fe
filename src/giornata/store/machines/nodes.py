"""Queries for nodes that have ever asked for work."""

import functools
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.node_queries import work_store
from giornata.control.ports.node_queries.work_rows import NodeBeat, NodeRow, NodeSighting
from giornata.domain.fleets.starts import NodeStart
from giornata.store import schema
from giornata.store.database.rows import ROWS, Queries, among, bind_each, insert_for, row_list, types_of, update_rows
from giornata.store.schema import fleets, instances, nodes

# The columns of the row that the statement reads or writes, by name: SQLAlchemy does not correlate a subquery in
# RETURNING, and would look through all nodes there.
_FLEET = sa.literal_column("nodes.fleet", nodes.c.fleet.type)
_INSTANCE_ID = sa.literal_column("nodes.instance_id", nodes.c.instance_id.type)
_ITS_INSTANCE = (instances.c.fleet == _FLEET, instances.c.id == _INSTANCE_ID)
# No process on an instance that is to go begins anything, whatever the reason for which it is to go.
_LEAVES = instances.c.leaving_at_ms.is_not(None) | (instances.c.state == sa.literal_column("'stopping'"))
_ON_LEAVING = sa.exists().where(*_ITS_INSTANCE, _LEAVES)
_DRAINING = (nodes.c.draining | _ON_LEAVING).label("draining")
_LISTED = "listed_price_micro_usd_per_hour"
_COLUMNS = tuple(_DRAINING if name == "draining" else nodes.c[name] for name in NodeRow.__slots__ if name != _LISTED)
# In the statement that reads the node, so that asking for it costs no query more.
_LISTED_PRICE = sa.func.coalesce(
    # An instance was listed at 0 while the provider did not say a price.
    sa.select(sa.func.nullif(instances.c.price_micro_usd_per_hour, 0)).where(*_ITS_INSTANCE).scalar_subquery(),
    sa.select(fleets.c.price_micro_usd_per_hour).where(fleets.c.name == _FLEET).scalar_subquery(),
).label(_LISTED)
_WHOLE = (*_COLUMNS, _LISTED_PRICE)  # in the order of the fields of NodeRow
# Made once: building a statement costs more than running it.
_BY_ID = sa.select(*_COLUMNS).where(nodes.c.id == sa.bindparam("wanted"))
_ON_MACHINE = (
    sa.select(nodes.c.id)
    .where(nodes.c.last_seen_at_ms >= sa.bindparam("since"), nodes.c.machine_id == sa.bindparam("machine"))
    .limit(1)
)
_sighted = attrgetter(*NodeSighting.__slots__)
_BEAT = ("last_seen_at_ms", "held_models", "engine_pid")


class Nodes(Queries, work_store.Nodes):
    def get(self, node_id: str) -> NodeRow | None:
        return _node(self._connection.execute(_BY_ID, {"wanted": node_id}).first())

    def see_each(self, nodes: Sequence[NodeSighting], *, at_ms: int) -> Mapping[str, NodeRow]:
        # In the order of their ids: two who write several must not wait for one another.
        in_order = sorted(nodes, key=lambda node: node.id)
        seen = {"first_seen_at_ms": at_ms, "last_seen_at_ms": at_ms}
        rows = [{**dict(zip(NodeSighting.__slots__, _sighted(node), strict=True)), **seen} for node in in_order]
        if self._dialect_name != "postgresql":
            bind_each(self._connection, _see(self._dialect_name), _SEEN, rows)
            return self._of_ids([node.id for node in in_order])
        known = _by_id(self._connection.execute(_see_rows(), {ROWS: rows}))
        others = [node.id for node in in_order if node.id not in known]
        return {**known, **self._of_ids(others)} if others else known

    def has_machine(self, machine_id: str, *, seen_since_ms: int) -> bool:
        of_it = {"machine": machine_id, "since": seen_since_ms}
        return self._connection.execute(_ON_MACHINE, of_it).first() is not None

    def forget(self, node_id: str) -> None:
        self._connection.execute(sa.delete(nodes).where(nodes.c.id == node_id))

    def note_checks(self, node_id: str, checks: Mapping[str, Any], *, start: NodeStart) -> None:
        noted = {"checks": dict(checks), "start": start}
        self._connection.execute(sa.update(nodes).where(nodes.c.id == node_id).values(noted))

    def beat_each(self, beats: Sequence[NodeBeat], *, at_ms: int) -> frozenset[str]:
        rows = [
            {
                "id": beat.id,
                "last_seen_at_ms": at_ms,
                "held_models": list(beat.held_models),
                "engine_pid": beat.engine_pid,
            }
            for beat in sorted(beats, key=lambda beat: beat.id)
        ]
        if self._dialect_name != "postgresql":
            # In RETURNING it would look for the instance through all of them.
            update_rows(self._connection, self._dialect_name, schema.nodes, rows)
            seen = self._connection.execute(_leaving(), {"wanted": [beat.id for beat in beats]})
            return frozenset(seen.scalars())
        found = self._connection.execute(_beat(), {ROWS: rows})
        return frozenset(node_id for node_id, draining in found if draining)

    def _of_ids(self, node_ids: Sequence[str]) -> Mapping[str, NodeRow]:
        return _by_id(self._connection.execute(_of_ids(self._dialect_name), {"wanted": list(node_ids)}))


_SEEN = (*NodeSighting.__slots__, "first_seen_at_ms", "last_seen_at_ms")


@functools.cache
def _see(dialect_name: str) -> Any:
    return _or_refresh(insert_for(dialect_name, nodes))


@functools.cache
def _see_rows() -> Any:
    """Return PostgreSQL's insert of all nodes in one statement, which gives the rows back but for those of other
    projects.
    """
    given = row_list("postgresql", types_of(nodes, *_SEEN))
    some = sa.select(*(given.c[name] for name in _SEEN)).order_by(given.c.id)
    insert = insert_for("postgresql", nodes).from_select(_SEEN, some, include_defaults=False)
    return _or_refresh(insert).returning(*_WHOLE)


def _or_refresh(insert: Any) -> Any:
    new = insert.excluded
    lasting = {name: new[name] for name in _SEEN if name not in {"id", "project_id", "first_seen_at_ms"}}
    # A node that makes itself known asks for work, unless its checks say otherwise: see `note_checks`.
    return insert.on_conflict_do_update(
        index_elements=[nodes.c.id],
        set_={**lasting, "start": sa.literal_column("''")},
        where=nodes.c.project_id == new.project_id,
    )


@functools.cache
def _beat() -> Any:
    """Return PostgreSQL's update of all beats. An UPDATE goes through its rows in any order, so they are locked
    before, in order.
    """
    given = row_list("postgresql", types_of(nodes, "id", *_BEAT))
    theirs = nodes.alias("theirs")
    wanted = sa.select(theirs.c.id).where(theirs.c.id.in_(sa.select(given.c.id))).order_by(theirs.c.id)
    held = wanted.with_for_update(key_share=True).cte("held")
    update = sa.update(nodes).where(nodes.c.id == given.c.id, nodes.c.id == held.c.id)
    return update.values({name: given.c[name] for name in _BEAT}).returning(nodes.c.id, _DRAINING)


@functools.cache
def _leaving() -> sa.Select[Any]:
    """Return SQLite's query for those of these nodes that are to go."""
    return sa.select(nodes.c.id).where(among("sqlite", nodes.c.id, "wanted"), _DRAINING.element)


@functools.cache
def _of_ids(dialect_name: str) -> sa.Select[Any]:
    return sa.select(*_WHOLE).where(among(dialect_name, nodes.c.id, "wanted"))


def _by_id(rows: Any) -> dict[str, NodeRow]:
    return {row.id: NodeRow(**dict(zip(NodeRow.__slots__, row, strict=True))) for row in rows}


def _node(row: sa.Row[Any] | None) -> NodeRow | None:
    return None if row is None else NodeRow(**row._mapping)
