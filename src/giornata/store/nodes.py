"""Nodes that have ever asked for work."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.work_store import NodeRow, NodeSighting
from giornata.store.dialect_insert import insert_for
from giornata.store.schema import nodes

_COLUMNS = tuple(nodes.c[name] for name in NodeRow.__slots__)
# Made once: building a statement costs more than running it.
_BY_ID = sa.select(*_COLUMNS).where(nodes.c.id == sa.bindparam("wanted"))
_BEAT = (
    sa.update(nodes)
    .where(nodes.c.id == sa.bindparam("wanted"))
    .values({name: sa.bindparam(name) for name in ("last_seen_at_ms", "held_models", "engine_pid")})
    .returning(nodes.c.draining)
)


class Nodes:
    """See `giornata.control.ports.work_store.Nodes`."""

    def __init__(self, connection: sa.Connection, dialect_name: str) -> None:
        self._connection = connection
        self._dialect_name = dialect_name

    def get(self, node_id: str) -> NodeRow | None:
        return _node(self._connection.execute(_BY_ID, {"wanted": node_id}).first())

    def see(self, node: NodeSighting, *, at_ms: int) -> NodeRow | None:
        said = dataclasses.asdict(node) | {"last_seen_at_ms": at_ms}
        values = {"first_seen_at_ms": at_ms, **said}
        return _node(self._connection.execute(_see(self._dialect_name, tuple(values)), values).first())

    def beat(self, node_id: str, *, at_ms: int, held_models: Sequence[str], engine_pid: int | None) -> bool:
        values = {"last_seen_at_ms": at_ms, "held_models": list(held_models), "engine_pid": engine_pid}
        return bool(self._connection.scalar(_BEAT, {"wanted": node_id, **values}))


@functools.cache
def _see(dialect_name: str, names: tuple[str, ...]) -> Any:
    statement = insert_for(dialect_name, nodes).values({name: sa.bindparam(name) for name in names})
    new = statement.excluded
    lasting = {name: new[name] for name in names if name not in {"id", "project_id", "first_seen_at_ms"}}
    return statement.on_conflict_do_update(
        index_elements=[nodes.c.id], set_=lasting, where=nodes.c.project_id == new.project_id
    ).returning(*_COLUMNS)


def _node(row: sa.Row[Any] | None) -> NodeRow | None:
    return None if row is None else NodeRow(**row._mapping)
