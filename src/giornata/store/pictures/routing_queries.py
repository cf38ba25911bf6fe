"""Queries for the policy that routes pictures: distinct bases in the queue, and the models of nodes.

A loose scan of ix_pictures_queue_base finds the distinct bases: each step of a recursive query probes the index for
the next base behind the one before.
"""

import functools
from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.node_queries import routing_store
from giornata.control.ports.node_queries.routing_store import BaseQueue, NodeModelsRow
from giornata.domain.generation.picture import LEASE_KIND
from giornata.protocol.generation.preprocess import PREPROCESS_KIND
from giornata.protocol.node.held_models import HeldTier, HeldTiers
from giornata.store.database.rows import Queries, among, insert_for, record_of
from giornata.store.pictures.queued_pictures import IsQueued
from giornata.store.schema import jobs, node_models, nodes, picture_orders, pictures

DRAWERS = frozenset({LEASE_KIND, PREPROCESS_KIND})
"""Kinds of nodes that lease pictures."""
SAMPLE = 64
"""Pictures of a base whose work is added up."""
_IN_ORDER = (pictures.c.priority.desc(), pictures.c.turn)
_NODES = (
    sa.select(
        nodes.c.id.label("node_id"),
        nodes.c.project_id,
        nodes.c.last_seen_at_ms.label("seen_at_ms"),
        nodes.c.vram_bytes,
        nodes.c.held_models.label("gpu"),
        nodes.c.kinds,
        node_models.c.version,
        node_models.c.fetching,
    )
    .select_from(nodes.outerjoin(node_models, node_models.c.node_id == nodes.c.id))
    .where(nodes.c.last_seen_at_ms >= sa.bindparam("since", type_=sa.BigInteger()), nodes.c.draining.is_(sa.false()))
)


class RoutingQueries(Queries, routing_store.RoutingQueries):
    def base_queues(self, *, project_id: str | None) -> list[BaseQueue]:
        values = {} if project_id is None else {"project": project_id}
        found = self._connection.execute(base_queues_statement(one_project=project_id is not None), values)
        queues = [record_of(BaseQueue, row) for row in found if row.order_id is not None]
        return sorted(queues, key=lambda each: (-each.priority, each.turn, each.base_key))

    def nodes(self, *, seen_since_ms: int) -> list[NodeModelsRow]:
        found = self._connection.execute(_NODES, {"since": seen_since_ms})
        return [
            NodeModelsRow(
                node_id=row.node_id,
                project_id=row.project_id,
                seen_at_ms=row.seen_at_ms,
                vram_bytes=row.vram_bytes,
                gpu=row.gpu,
                version=row.version,
                fetching=row.fetching,
            )
            for row in found
            if not DRAWERS.isdisjoint(row.kinds)
        ]

    def held(self, node_ids: Collection[str]) -> Mapping[str, HeldTiers]:
        found = self._connection.execute(_held(self._dialect_name), {"wanted": sorted(node_ids)})
        return {row.node_id: {HeldTier(tier): frozenset(names) for tier, names in row.held.items()} for row in found}

    def note_held(self, node_id: str, *, version: int | None, held: HeldTiers | None, fetching: str | None) -> None:
        files = {tier.value: sorted(names) for tier, names in (held or {}).items() if names}
        values = {"node_id": node_id, "version": version, "held": files, "fetching": fetching}
        self._connection.execute(_note_held(self._dialect_name, with_files=held is not None), values)

    def forget_silent(self, *, seen_before_ms: int, limit: int) -> int:
        silent = (
            sa.select(node_models.c.node_id)
            .join(nodes, nodes.c.id == node_models.c.node_id)
            .where(nodes.c.last_seen_at_ms < seen_before_ms)
            .limit(limit)
        )
        return self._connection.execute(sa.delete(node_models).where(node_models.c.node_id.in_(silent))).rowcount


@functools.cache
def base_queues_statement(*, one_project: bool) -> sa.Select[Any]:
    """Return the query for the distinct bases. Takes `project` for the pictures of one project."""
    conditions: list[sa.ColumnElement[bool]] = [IsQueued()]
    if one_project:
        conditions.append(pictures.c.project_id == sa.bindparam("project", type_=sa.String()))
    first = sa.select(sa.func.min(pictures.c.base_key).label("base_key")).where(*conditions)
    bases = first.cte("bases", recursive=True)
    following = (
        sa.select(sa.func.min(pictures.c.base_key)).where(*conditions, pictures.c.base_key > bases.c.base_key)
    ).scalar_subquery()
    bases = bases.union_all(sa.select(following).where(bases.c.base_key.is_not(None)))
    mine = [*conditions, pictures.c.base_key == bases.c.base_key]

    def head(column: sa.Column[Any]) -> sa.ScalarSelect[Any]:
        return sa.select(column).where(*mine).order_by(*_IN_ORDER).limit(sa.literal_column("1")).scalar_subquery()

    sample = (
        sa.select(pictures.c.pixel_steps)
        .where(*mine)
        .order_by(*_IN_ORDER)
        .limit(sa.literal_column(str(SAMPLE)))
        .correlate(bases)
        .subquery("sample")
    )
    work = sa.select(sa.cast(sa.func.sum(sample.c.pixel_steps), sa.BigInteger)).scalar_subquery()
    count = sa.select(sa.func.count()).select_from(sample).scalar_subquery()
    heads = sa.select(
        bases.c.base_key,
        head(pictures.c.order_id).label("order_id"),
        head(pictures.c.priority).label("priority"),
        head(pictures.c.turn).label("turn"),
        head(pictures.c.min_vram_bytes).label("min_vram_bytes"),
        work.label("pixel_steps"),
        count.label("sampled"),
    ).where(bases.c.base_key.is_not(None))
    found = heads.subquery("heads")
    return (
        sa.select(
            *found.c,
            jobs.c.project_id,
            jobs.c.created_at_ms.label("waits_since_ms"),
            (picture_orders.c.pictures - picture_orders.c.ended).label("order_pictures"),
        )
        .join(jobs, jobs.c.id == found.c.order_id)
        .join(picture_orders, picture_orders.c.order_id == found.c.order_id)
    )


@functools.cache
def _held(dialect_name: str) -> sa.Select[Any]:
    known = node_models.c.version.is_not(None)
    return sa.select(node_models.c.node_id, node_models.c.held).where(
        among(dialect_name, node_models.c.node_id, "wanted"), known
    )


@functools.cache
def _note_held(dialect_name: str, *, with_files: bool) -> Any:
    insert = insert_for(dialect_name, node_models)
    changed = ("version", "held", "fetching") if with_files else ("fetching",)
    return insert.on_conflict_do_update(
        index_elements=[node_models.c.node_id], set_={name: insert.excluded[name] for name in changed}
    )
