"""Queries for how fast attempts are, and when a queued job may start."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.fleet import InstanceState
from giornata.control.ports.node_queries import machine_store
from giornata.control.ports.node_queries.machine_store import PaceRow, StepAwaited, Takers
from giornata.control.ports.user_queries import money_store
from giornata.control.ports.user_queries.money_store import NodePlaces, QueueAhead, RunningJob
from giornata.control.ports.user_queries.records import FinishedRecord
from giornata.domain.fleets.starts import NodeStart
from giornata.domain.jobs.reasons import Reason
from giornata.domain.machines.health import MachineState
from giornata.domain.machines.machine_ids import AT, own_id
from giornata.protocol.node.work import Order
from giornata.protocol.project.admin import ROOT_PROJECT
from giornata.store.database.rows import Queries, columns
from giornata.store.jobs.turns import before
from giornata.store.machines.node_reads import replaced
from giornata.store.money.ledger import COUNT_BESIDE
from giornata.store.schema import attempts, bans, fleets, instances, jobs, machines, nodes

# Made once: building a statement costs more than running it.
_PACES: sa.Select[Any] = (  # in the order of the fields of PaceRow
    sa.select(
        attempts.c.id.label("attempt_id"),
        attempts.c.job_id,
        attempts.c.machine_id,
        jobs.c.kind,
        nodes.c.device,
        jobs.c.shape_key,
        (COUNT_BESIDE + 1).label("width"),
        jobs.c.project_id,
        attempts.c.order,
        attempts.c.lapsed,
        attempts.c.started_at_ms,
        attempts.c.first_step_at_ms,
        attempts.c.first_step,
        attempts.c.stepped_to,
        attempts.c.stepped_at_ms,
        attempts.c.renewed_at_ms.label("until_ms"),
        jobs.c.total_steps,
    )
    .join(jobs, jobs.c.id == attempts.c.job_id)
    .join(nodes, nodes.c.id == attempts.c.node_id)
    .where(attempts.c.first_step_at_ms.is_not(None))
)
# Attempts that have made a step and live.
_LIVE = _PACES.where(attempts.c.ended_at_ms.is_(None))
# The latest that ended and had made a step, of every reason: how fast a step was does not hang on the end.
_ENDED = (
    _PACES.where(attempts.c.ended_at_ms > sa.bindparam("since"))
    .order_by(attempts.c.ended_at_ms.desc())
    .limit(sa.bindparam("most", type_=sa.Integer()))
)
_WITHOUT_A_STEP = (
    sa.select(attempts.c.id, attempts.c.started_at_ms, attempts.c.renewed_at_ms)
    .join(jobs, jobs.c.id == attempts.c.job_id)
    .where(
        attempts.c.ended_at_ms.is_(None),
        attempts.c.first_step_at_ms.is_(None),
        attempts.c.lapsed.is_(sa.false()),
        attempts.c.order == Order.CONTINUE,
        attempts.c.started_at_ms < sa.bindparam("before"),
        jobs.c.total_steps.is_not(None),
    )
)
RECENT = 500


class Paces(Queries, machine_store.Paces):
    def live(self) -> Sequence[PaceRow]:
        return [PaceRow._make(row) for row in self._connection.execute(_LIVE)]

    def without_a_step(self, *, started_before_ms: int) -> Sequence[StepAwaited]:
        found = self._connection.execute(_WITHOUT_A_STEP, {"before": started_before_ms})
        return [StepAwaited._make(row) for row in found]

    def ended(self, *, since_ms: int, limit: int) -> Sequence[PaceRow]:
        found = self._connection.execute(_ENDED, {"since": since_ms, "most": limit})
        return [PaceRow._make(row) for row in found]

    def takers(self, of: PaceRow, *, seen_since_ms: int) -> Takers:
        works = sa.exists().where(attempts.c.node_id == nodes.c.id, attempts.c.ended_at_ms.is_(None))
        banned = sa.exists().where(bans.c.job_id == of.job_id, bans.c.machine_id == nodes.c.machine_id)
        in_doubt = sa.exists().where(
            machines.c.machine_id == nodes.c.machine_id,
            machines.c.kind == of.kind,
            machines.c.state != MachineState.OK,
        )
        query = sa.select(nodes.c.kinds, nodes.c.fleet, works.label("works")).where(
            nodes.c.last_seen_at_ms >= seen_since_ms,
            nodes.c.draining.is_(sa.false()),
            nodes.c.machine_id != of.machine_id,
            nodes.c.device == of.device,
            nodes.c.project_id.in_((ROOT_PROJECT, of.project_id)),
            ~banned,
            ~in_doubt,
            ~replaced(),
        )
        able = [row.works for row in self._connection.execute(query) if of.kind in row.kinds]
        return Takers(idle=able.count(False), busy=able.count(True), coming=self._coming(of))

    def _coming(self, of: PaceRow) -> int:
        """Count instances that start in the fleet in which the attempt runs: they will be such nodes."""
        fleet = (
            sa.select(nodes.c.fleet)
            .join(attempts, attempts.c.node_id == nodes.c.id)
            .where(attempts.c.id == of.attempt_id)
            .scalar_subquery()
        )
        query = (
            sa.select(sa.func.count())
            .select_from(instances)
            .join(fleets, fleets.c.name == instances.c.fleet)
            .where(
                instances.c.fleet == fleet,
                instances.c.state == InstanceState.STARTING,
                instances.c.gone_at_ms.is_(None),
                instances.c.leaving_at_ms.is_(None),
            )
        )
        return self._connection.scalar(query) or 0


class Forecasts(Queries, money_store.Forecasts):
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

    def ahead(self, *, kind: str, interrupted: bool, priority: int, turn: int, job_id: str) -> list[QueueAhead]:
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
            QueueAhead(shape_key=row.shape_key, jobs=row.jobs, steps=row.steps if row.counted == row.jobs else None)
            for row in self._connection.execute(query)
        ]

    def places(self, *, kind: str, project_id: str, min_vram_bytes: int, seen_since_ms: int) -> list[NodePlaces]:
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
            NodePlaces(
                places=max(row.places, len(works[row.id])),
                at_work=tuple(works[row.id]),
                device=row.device,
                price_micro_usd_per_hour=row.price_micro_usd_per_hour,
            )
            for row in able
        ]

    def _works(self) -> dict[str, list[RunningJob]]:
        query = (
            sa.select(attempts.c.node_id, jobs.c.shape_key, jobs.c.total_steps)
            .add_columns(*(attempts.c[name] for name in ("first_step_at_ms", "start_step", "last_step")))
            .join(jobs, jobs.c.id == attempts.c.job_id)
            .where(attempts.c.ended_at_ms.is_(None), attempts.c.lapsed.is_(sa.false()))
        )
        found: dict[str, list[RunningJob]] = defaultdict(list)
        for row in self._connection.execute(query):
            found[row.node_id].append(_at_work(row))
        return found


def _at_work(row: Any) -> RunningJob:
    return RunningJob(
        shape_key=row.shape_key,
        total_steps=row.total_steps,
        first_step_at_ms=row.first_step_at_ms,
        start_step=row.start_step,
        last_step=row.last_step,
    )
