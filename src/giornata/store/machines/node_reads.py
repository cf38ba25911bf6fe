"""Queries that read nodes for users and operators."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.user_queries.records import NodeRecord, QueueView, Rows
from giornata.control.ports.user_queries.user_store import Before
from giornata.domain.fleets.starts import NodeStart
from giornata.domain.jobs.routing import ENDLESS_BYTES
from giornata.domain.machines.health import MachineState
from giornata.protocol.project.admin import ROOT_PROJECT
from giornata.store.database.bounded_pages import bounded, is_more_behind, size_of
from giornata.store.database.rows import Queries, columns
from giornata.store.jobs.claiming import eligible, for_machine, large_enough
from giornata.store.schema import attempts, jobs, machines, nodes, strikes

COUNTED = frozenset({"job_ids", "replaced", "strikes"})
NODE_COLUMNS = columns(nodes, NodeRecord, but=COUNTED)
NODE_BYTES = 1000  # of a reply, besides lists and documents
_newer = nodes.alias("newer")


def replaced() -> sa.ColumnElement[bool]:
    """Return the condition of a node that another of the same name on the same machine has replaced.

    The other first appeared after this one was last heard of.

    Two processes under one name that both live are heard of again and again, and count as two.
    """
    return sa.exists().where(
        _newer.c.project_id == nodes.c.project_id,
        _newer.c.machine_id == nodes.c.machine_id,
        _newer.c.name == nodes.c.name,
        _newer.c.first_seen_at_ms > nodes.c.last_seen_at_ms,
    )


_vram_bytes = sa.func.coalesce(nodes.c.vram_bytes, sa.literal(ENDLESS_BYTES, sa.BigInteger))
_this = jobs.c.id == sa.bindparam("job")
_quarantined = sa.exists().where(
    machines.c.machine_id == nodes.c.machine_id,
    machines.c.kind == sa.bindparam("kind"),
    machines.c.state == MachineState.QUARANTINED,
)
_large = sa.exists().where(_this, for_machine(nodes.c.machine_id), *large_enough(_vram_bytes))
_may = sa.exists().where(_this, *eligible(nodes.c.machine_id, _vram_bytes, None)) & ~_quarantined
_right = sa.exists().where(_this, for_machine(nodes.c.machine_id))
# Made once: building a statement costs more than running it.
_LIVE = sa.select(
    nodes.c.kinds, nodes.c.vram_bytes, _right.label("right"), _large.label("large"), _may.label("may")
).where(
    nodes.c.project_id.in_((ROOT_PROJECT, sa.bindparam("project", type_=sa.String()))),
    nodes.c.last_seen_at_ms >= sa.bindparam("since"),
    nodes.c.draining.is_(sa.false()),
    nodes.c.start == NodeStart.DONE,
    ~replaced(),
)


class NodeReads(Queries):
    """The queries of `user_store.JobReads` that are about nodes."""

    def live(self, job_id: str, *, kind: str, project_id: str, seen_since_ms: int) -> QueueView:
        """Count the nodes that could do this job now, by the claim's own predicate and gate. Counts no jobs ahead."""
        wanted = {"job": job_id, "kind": kind, "project": project_id, "since": seen_since_ms}
        able = [row for row in self._connection.execute(_LIVE, wanted) if kind in row.kinds]
        return QueueView(
            ahead=0,
            live_nodes=sum(row.right for row in able),
            large_nodes=sum(row.large for row in able),
            largest_bytes=max(
                (row.vram_bytes for row in able if row.right and row.vram_bytes is not None), default=None
            ),
            eligible_nodes=sum(row.may for row in able),
        )

    def page(
        self, *, project_id: str | None, seen_since_ms: int | None, before: Before, limit: int, most_bytes: int
    ) -> Rows[NodeRecord]:
        """Return a page of nodes by first appearance, newest first."""
        query = sa.select(nodes.c.id, nodes.c.first_seen_at_ms)
        if project_id is not None:
            query = query.where(nodes.c.project_id == project_id)
        if seen_since_ms is not None:
            query = query.where(nodes.c.last_seen_at_ms >= seen_since_ms)
        if before is not None:
            query = query.where(sa.tuple_(nodes.c.first_seen_at_ms, nodes.c.id) < before)
        page = bounded(
            nodes,
            (*NODE_COLUMNS, replaced().label("replaced")),
            query,
            order=(nodes.c.first_seen_at_ms, nodes.c.id),
            newest_first=True,
            size=size_of(nodes.c.held_models, nodes.c.checks) + NODE_BYTES,
            limit=limit,
            most_bytes=most_bytes,
        )
        rows = self._connection.execute(page).all()
        return Rows(items=self._whole(rows), more=is_more_behind(rows))

    def one(self, node_id: str) -> NodeRecord | None:
        """Return the node of this id; None when there is none."""
        query = sa.select(*NODE_COLUMNS, replaced().label("replaced")).where(nodes.c.id == node_id)
        return next(iter(self._whole(self._connection.execute(query).all())), None)

    def _whole(self, rows: Sequence[Any]) -> list[NodeRecord]:
        held = self._held([row.id for row in rows])
        struck = self._strikes([row.machine_id for row in rows])
        return [_node(row, held[row.id], struck.get(row.machine_id, 0)) for row in rows]

    def _held(self, node_ids: Sequence[str]) -> dict[str, list[str]]:
        query = (
            sa.select(attempts.c.node_id, attempts.c.job_id)
            .where(attempts.c.node_id.in_(node_ids), attempts.c.ended_at_ms.is_(None))
            .order_by(attempts.c.job_id)
        )
        held: dict[str, list[str]] = defaultdict(list)
        for node_id, job_id in self._connection.execute(query):
            held[node_id].append(job_id)
        return held

    def _strikes(self, machine_ids: Sequence[str]) -> dict[str, int]:
        query = (
            sa.select(strikes.c.machine_id, sa.func.count().label("strikes"))
            .where(strikes.c.machine_id.in_(machine_ids))
            .group_by(strikes.c.machine_id)
        )
        return {row.machine_id: row.strikes for row in self._connection.execute(query)}


def _node(row: Any, job_ids: Sequence[str], strike_count: int) -> NodeRecord:
    kept = {column.name: row._mapping[column.name] for column in NODE_COLUMNS}
    return NodeRecord(**kept, replaced=row.replaced, job_ids=tuple(job_ids), strikes=strike_count)
