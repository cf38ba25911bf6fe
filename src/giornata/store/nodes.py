"""Nodes that have ever asked for work."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.work_store import NodeRow, NodeSighting
from giornata.store.dialect_insert import insert_for
from giornata.store.schema import nodes

_COLUMNS = tuple(nodes.c[name] for name in NodeRow.__slots__)


class Nodes:
    """See `giornata.control.ports.work_store.Nodes`."""

    def __init__(self, connection: sa.Connection, dialect_name: str) -> None:
        self._connection = connection
        self._dialect_name = dialect_name

    def get(self, node_id: str) -> NodeRow | None:
        return _node(self._connection.execute(sa.select(*_COLUMNS).where(nodes.c.id == node_id)).first())

    def see(self, node: NodeSighting, *, at_ms: int) -> NodeRow | None:
        said = dataclasses.asdict(node) | {"last_seen_at_ms": at_ms}
        lasting = {name: value for name, value in said.items() if name not in {"id", "project_id"}}
        statement = insert_for(self._dialect_name, nodes).values(first_seen_at_ms=at_ms, **said)
        statement = statement.on_conflict_do_update(
            index_elements=[nodes.c.id], set_=lasting, where=nodes.c.project_id == node.project_id
        ).returning(*_COLUMNS)
        return _node(self._connection.execute(statement).first())

    def beat(self, node_id: str, *, at_ms: int, held_models: Sequence[str], engine_pid: int | None) -> bool:
        draining = self._connection.scalar(
            sa.update(nodes)
            .where(nodes.c.id == node_id)
            .values(last_seen_at_ms=at_ms, held_models=list(held_models), engine_pid=engine_pid)
            .returning(nodes.c.draining)
        )
        return bool(draining)


def _node(row: sa.Row[Any] | None) -> NodeRow | None:
    return None if row is None else NodeRow(**row._mapping)
