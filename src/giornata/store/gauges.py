"""Queries that count for the operator's gauges."""

import sqlalchemy as sa

from giornata.control.ports.node_queries import gauges as ports
from giornata.control.ports.node_queries.gauges import Gauges
from giornata.domain.jobs.reasons import Reason
from giornata.domain.machines.health import MachineState
from giornata.protocol.project.admin import NodeState
from giornata.store.database.rows import Queries
from giornata.store.jobs.claiming import FOR_ANYONE
from giornata.store.machines.node_reads import replaced
from giornata.store.outbox_gauges import outbox_gauges
from giornata.store.pictures.picture_gauges import picture_gauges
from giornata.store.schema import attempts, audits, fleets, instances, jobs, machines, nodes, reallocations


class GaugeQueries(Queries, ports.GaugeQueries):
    def now(self, *, seen_since_ms: int) -> Gauges:
        oldest_id, oldest_project, oldest_at_ms = self._oldest_queued() or (None, None, None)
        return Gauges(
            jobs=self._jobs(),
            oldest_queued_at_ms=oldest_at_ms,
            oldest_queued=(oldest_id, oldest_project) if oldest_id and oldest_project else None,
            nodes=self._nodes(seen_since_ms),
            machines=self._machines(),
            quarantines=self._quarantines(),
            reallocations=self._reallocations(),
            fleet_desired=self._fleet_desired(),
            fleet_instances=self._fleet_instances(),
            pictures=picture_gauges(self._connection),
            outbox=outbox_gauges(self._connection),
            audits=self._audits(),
        )

    def attempts_ended(self, *, from_ms: int, before_ms: int | None) -> ports.EndedTotals:
        # From ix_attempts_ended.
        a = attempts.c
        ended = (a.ended_at_ms >= from_ms) & a.reason.is_not(None)
        if before_ms is not None:
            ended &= a.ended_at_ms < before_ms
        done = sa.case((a.last_step > a.start_step, a.last_step - a.start_step), else_=0)
        safe = sa.case((a.committed_step > a.start_step, a.committed_step), else_=a.start_step)
        lost = sa.case((a.reason == Reason.SUCCEEDED, 0), (a.last_step > safe, a.last_step - safe), else_=0)
        sums = (sa.func.count(), sa.func.sum(done), sa.func.sum(lost))
        rows = self._connection.execute(sa.select(a.reason, *sums).where(ended).group_by(a.reason)).all()
        return ports.EndedTotals(
            by_reason={str(row[0]): int(row[1]) for row in rows},
            steps_done=sum(int(row[2]) for row in rows),
            steps_lost=sum(int(row[3]) for row in rows),
        )

    def _machines(self) -> dict[str, int]:
        # A machine that is no good for one kind of job is one that somebody should look at.
        order = {MachineState.OK: 0, MachineState.PROBATION: 1, MachineState.QUARANTINED: 2}
        severity = sa.case({state.value: rank for state, rank in order.items()}, value=machines.c.state)
        worst = sa.select(sa.func.max(severity).label("worst")).group_by(machines.c.machine_id).subquery()
        query = sa.select(worst.c.worst, sa.func.count()).group_by(worst.c.worst)
        names = {rank: state.value for state, rank in order.items()}
        return {names[rank]: count for rank, count in self._connection.execute(query)}

    def _quarantines(self) -> int:
        return int(self._connection.scalar(sa.select(sa.func.sum(machines.c.quarantined_times))) or 0)

    def _reallocations(self) -> dict[str, int]:
        query = sa.select(reallocations.c.fleet, sa.func.count()).group_by(reallocations.c.fleet)
        return {row.fleet: int(row[1]) for row in self._connection.execute(query)}

    def _jobs(self) -> dict[tuple[str, str], int]:
        query = sa.select(jobs.c.kind, jobs.c.state, sa.func.count()).group_by(jobs.c.kind, jobs.c.state)
        return {(kind, state): count for kind, state, count in self._connection.execute(query)}

    def _audits(self) -> dict[str, int]:
        query = sa.select(audits.c.state, sa.func.count()).group_by(audits.c.state)
        return {row.state: int(row[1]) for row in self._connection.execute(query)}

    def _oldest_queued(self) -> tuple[str, str, int] | None:
        query = sa.select(jobs.c.id, jobs.c.project_id, jobs.c.created_at_ms).where(FOR_ANYONE)
        row = self._connection.execute(query.order_by(jobs.c.created_at_ms, jobs.c.id).limit(1)).first()
        return None if row is None else (row.id, row.project_id, row.created_at_ms)

    def _nodes(self, seen_since_ms: int) -> dict[NodeState, int]:
        works = sa.exists().where(attempts.c.node_id == nodes.c.id, attempts.c.ended_at_ms.is_(None))
        state = sa.case(
            ((nodes.c.last_seen_at_ms < seen_since_ms) | replaced(), NodeState.GONE.value),
            (nodes.c.draining, NodeState.DRAINING.value),
            (works, NodeState.BUSY.value),
            else_=NodeState.IDLE.value,
        ).label("state")
        inner = sa.select(state).subquery()
        query = sa.select(inner.c.state, sa.func.count()).group_by(inner.c.state)
        return {NodeState(name): count for name, count in self._connection.execute(query)}

    def _fleet_desired(self) -> dict[str, int]:
        return {row.name: row.desired for row in self._connection.execute(sa.select(fleets.c.name, fleets.c.desired))}

    def _fleet_instances(self) -> dict[tuple[str, str], int]:
        state = sa.case(
            (instances.c.ended_at_ms.is_not(None), "ending"),
            (instances.c.leaving_at_ms.is_not(None), "leaving"),
            else_=instances.c.state,
        ).label("state")
        present = sa.select(instances.c.fleet, state).where(instances.c.gone_at_ms.is_(None)).subquery()
        alike = (present.c.fleet, present.c.state)
        query = sa.select(*alike, sa.func.count()).group_by(*alike)
        return {(fleet, state): count for fleet, state, count in self._connection.execute(query)}
