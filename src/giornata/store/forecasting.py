"""What a forecast asks: how fast recent jobs were, what stands ahead, and which places there are."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.money_store import Ahead, AtWork, Place
from giornata.control.ports.records import FinishedRecord
from giornata.domain.machine_ids import AT, own_id
from giornata.domain.reasons import Reason
from giornata.domain.starts import NodeStart
from giornata.protocol.admin import ROOT_PROJECT
from giornata.store.node_succession import replaced
from giornata.store.record_columns import columns
from giornata.store.schema import attempts, jobs, nodes
from giornata.store.turns import before

RECENT = 500


class ForecastQueries:
    """See `giornata.control.ports.money_store.Forecasts`."""

    def __init__(self, connection: sa.Connection, _dialect_name: str) -> None:
        self._connection = connection

    def recent(self, *, project_id: str) -> Mapping[str, list[FinishedRecord]]:
        reached = ~attempts.c.machine_id.contains(AT) | attempts.c.machine_id.endswith(own_id("", project_id))
        query = (
            sa.select(jobs.c.shape_key, *columns(attempts, FinishedRecord))
            .join(jobs, jobs.c.id == attempts.c.job_id)
            .where(attempts.c.reason == Reason.SUCCEEDED, attempts.c.ended_at_ms.is_not(None), reached)
            .order_by(attempts.c.ended_at_ms.desc())
            .limit(RECENT)
        )
        found: dict[str, list[FinishedRecord]] = defaultdict(list)
        for row in self._connection.execute(query):
            values = {name: value for name, value in row._mapping.items() if name != "shape_key"}
            found[row.shape_key].append(FinishedRecord(**values))
        return found

    def ahead(self, *, kind: str, interrupted: bool, priority: int, turn: int, job_id: str) -> list[Ahead]:
        left = jobs.c.total_steps - jobs.c.committed_step
        query = (
            sa.select(
                jobs.c.shape_key,
                sa.func.count().label("jobs"),
                sa.cast(sa.func.sum(left), sa.BigInteger).label("steps"),
                sa.func.count(jobs.c.total_steps).label("counted"),
            )
            .where(*before(kind=kind, interrupted=interrupted, priority=priority, turn=turn, job_id=job_id))
            .group_by(jobs.c.shape_key)
        )
        return [
            Ahead(shape_key=row.shape_key, jobs=row.jobs, steps=row.steps if row.counted == row.jobs else None)
            for row in self._connection.execute(query)
        ]

    def places(self, *, kind: str, project_id: str, min_vram_bytes: int, seen_since_ms: int) -> list[Place]:
        about = (nodes.c.places, nodes.c.device, nodes.c.price_micro_usd_per_hour)
        query = sa.select(nodes.c.id, nodes.c.kinds, *about).where(
            nodes.c.project_id.in_((ROOT_PROJECT, project_id)),
            nodes.c.last_seen_at_ms >= seen_since_ms,
            nodes.c.draining.is_(sa.false()),
            nodes.c.start == NodeStart.DONE,
            nodes.c.vram_bytes.is_(None) | (nodes.c.vram_bytes >= min_vram_bytes),
            ~replaced(),
        )
        able = [row for row in self._connection.execute(query) if kind in row.kinds]
        works = self._works()
        return [
            Place(
                places=max(row.places, len(works[row.id])),
                at_work=tuple(works[row.id]),
                device=row.device,
                price_micro_usd_per_hour=row.price_micro_usd_per_hour,
            )
            for row in able
        ]

    def _works(self) -> dict[str, list[AtWork]]:
        query = (
            sa.select(attempts.c.node_id, jobs.c.shape_key, jobs.c.total_steps)
            .add_columns(*(attempts.c[name] for name in ("first_step_at_ms", "start_step", "last_step")))
            .join(jobs, jobs.c.id == attempts.c.job_id)
            .where(attempts.c.ended_at_ms.is_(None), attempts.c.lapsed.is_(sa.false()))
        )
        found: dict[str, list[AtWork]] = defaultdict(list)
        for row in self._connection.execute(query):
            found[row.node_id].append(_at_work(row))
        return found


def _at_work(row: Any) -> AtWork:
    return AtWork(
        shape_key=row.shape_key,
        total_steps=row.total_steps,
        first_step_at_ms=row.first_step_at_ms,
        start_step=row.start_step,
        last_step=row.last_step,
    )
