"""Queries for the health of machines."""

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.fleet import Instance
from giornata.control.ports.node_queries import machine_store
from giornata.control.ports.node_queries.machine_store import Engagement, LastNode, MachineKey, Outcomes, Reallocation
from giornata.domain.jobs.job import TERMINAL, JobState
from giornata.domain.jobs.reasons import BLAME, Blame, Reason
from giornata.domain.machines.health import Failure, MachineHealth, MachineState
from giornata.domain.machines.machine_ids import AT, own_name, owner_of
from giornata.protocol.specs import CANARY_KIND
from giornata.store.database.rows import ROWS, Queries, among, insert_for, row_list, types_of
from giornata.store.schema import attempts, instances, jobs, machines, nodes, reallocations

_AT_STAKE = sorted(reason for reason in Reason if BLAME[reason] in {Blame.MACHINE, Blame.UNDECIDED})
_KEY = (machines.c.machine_id, machines.c.kind)
_FIELDS = tuple({"recent_failures": "failures"}.get(column.name, column.name) for column in machines.c)
_LIVE = attempts.c.ended_at_ms.is_(None)
# One that lapsed lives until another claim takes its job. It must not keep its own machine from being that one.
_AT_WORK = _LIVE & ~attempts.c.lapsed
_ENGAGED = (
    sa.select(attempts.c.started_at_ms, _AT_WORK.label("live"))
    .join(jobs, jobs.c.id == attempts.c.job_id)
    .where(attempts.c.machine_id == sa.bindparam("machine"), jobs.c.kind == sa.bindparam("of_kind"))
)
_ENGAGED_LATELY = _ENGAGED.where(
    attempts.c.started_at_ms > sa.bindparam("since"), _AT_WORK | attempts.c.reason.in_(_AT_STAKE)
)
_ENGAGED_LONGER = _ENGAGED.where(attempts.c.started_at_ms <= sa.bindparam("since"), _AT_WORK)
_OF_CANARY = sa.select(*_KEY).where(machines.c.canary_job_id == sa.bindparam("wanted"))
_IN_STATE = (
    sa.select(machines)
    .where(machines.c.state == sa.bindparam("in_state"))
    # The operator's machines come first, before any number of a project's own.
    .order_by(machines.c.machine_id.contains(AT), machines.c.since_ms, *_KEY)
    .limit(sa.bindparam("most", type_=sa.Integer()))
)
_STATE_OF_JOB = sa.select(jobs.c.state).where(jobs.c.id == sa.bindparam("wanted"))
_live_attempts = (
    sa.select(sa.func.count()).where(attempts.c.node_id == nodes.c.id, _LIVE).scalar_subquery().label("live_attempts")
)
_asked = (
    sa.exists()
    .where(
        reallocations.c.fleet == nodes.c.fleet,
        reallocations.c.machine_id == nodes.c.machine_id,
        reallocations.c.at_ms >= nodes.c.first_seen_at_ms,
    )
    .label("asked")
)
# A node that does not know what it is called is known by its machine.
_by_machine = nodes.c.instance_id.is_(None) & (instances.c.machine_id == nodes.c.machine_id)
_LAST_NODES = (
    sa.select(
        nodes.c.machine_id,
        nodes.c.id.label("node_id"),
        nodes.c.fleet,
        nodes.c.instance_id,
        nodes.c.last_seen_at_ms,
        _live_attempts,
        instances.c.leaving_at_ms,
        _asked,
    )
    .outerjoin(
        instances, (instances.c.fleet == nodes.c.fleet) & ((instances.c.id == nodes.c.instance_id) | _by_machine)
    )
    .where(
        nodes.c.last_seen_at_ms >= sa.bindparam("since"),
        nodes.c.machine_id.in_(sa.bindparam("machines", expanding=True)),
    )
    .order_by(nodes.c.last_seen_at_ms, nodes.c.id)
)
_REALLOCATIONS = (
    sa.select(*(reallocations.c[field.name] for field in fields(Reallocation)))
    .where(reallocations.c.fleet == sa.bindparam("of_fleet"), reallocations.c.at_ms > sa.bindparam("since"))
    .order_by(reallocations.c.at_ms.desc(), reallocations.c.id.desc())
)


class Machines(Queries, machine_store.Machines):
    def get_each(self, machine_ids: Collection[str], kinds: Collection[str]) -> Mapping[MachineKey, MachineHealth]:
        values = {"machines": sorted(set(machine_ids)), "kinds": sorted(set(kinds))}
        found = self._connection.execute(_some(self._dialect_name), values)
        return _by_key(found)

    def lock_each(self, keys: Collection[MachineKey]) -> Mapping[MachineKey, MachineHealth]:
        if not keys:
            return {}
        rows = [{"machine_id": machine_id, "kind": kind} for machine_id, kind in keys]
        return _by_key(self._connection.execute(_lock(self._dialect_name), {ROWS: rows}))

    def make_sure(self, health: MachineHealth) -> None:
        self._connection.execute(
            insert_for(self._dialect_name, machines).values(_values(health)).on_conflict_do_nothing()
        )

    def put(self, health: MachineHealth) -> None:
        mine = (machines.c.machine_id == health.machine_id) & (machines.c.kind == health.kind)
        self._connection.execute(sa.update(machines).where(mine).values(_values(health)))

    def engagement(self, machine_id: str, kind: str, *, since_ms: int) -> Engagement:
        of_it = {"machine": machine_id, "of_kind": kind, "since": since_ms}
        rows = self._connection.execute(_ENGAGED_LATELY, of_it).all()
        live = sum(1 for row in rows if row.live) + len(self._connection.execute(_ENGAGED_LONGER, of_it).all())
        return Engagement(live=live, at_stake_ms=tuple(row.started_at_ms for row in rows))

    def outcomes(self, kind: str, reason: Reason, *, owner: str | None, since_ms: int) -> Outcomes:
        # Not a join: SQLite would begin it with all jobs there are.
        of_kind = sa.exists().where(jobs.c.id == attempts.c.job_id, jobs.c.kind == kind)
        lately = sa.select(
            attempts.c.machine_id, attempts.c.job_id, attempts.c.reason, attempts.c.first_step_at_ms
        ).where(of_kind)
        all_ended = self._connection.execute(lately.where(attempts.c.ended_at_ms > since_ms))
        all_under_way = self._connection.execute(lately.where(_LIVE, attempts.c.first_step_at_ms > since_ms))
        ended = [row for row in all_ended if owner_of(row.machine_id) == owner]
        under_way = [row for row in all_under_way if owner_of(row.machine_id) == owner]
        failing = frozenset(row.machine_id for row in ended if row.reason == reason)
        fine = {row.machine_id for row in under_way}
        fine |= {row.machine_id for row in ended if row.reason == Reason.SUCCEEDED}
        fine |= {row.machine_id for row in ended if (row.first_step_at_ms or 0) > since_ms}
        failed_jobs = {row.job_id for row in ended if row.reason == reason}
        return Outcomes(failing=failing, fine=frozenset(fine) - failing, jobs=len(failed_jobs))

    def failures_of_job(self, job_id: str) -> Sequence[tuple[str, str, Reason]]:
        query = sa.select(attempts.c.id, attempts.c.machine_id, attempts.c.reason).where(
            attempts.c.job_id == job_id, attempts.c.reason.in_(_AT_STAKE)
        )
        return [(row.id, row.machine_id, Reason(row.reason)) for row in self._connection.execute(query)]

    def of_canary(self, job_id: str) -> Sequence[MachineKey]:
        found = self._connection.execute(_OF_CANARY, {"wanted": job_id})
        return [(row.machine_id, row.kind) for row in found]

    def in_state(self, state: MachineState, *, limit: int) -> Sequence[MachineHealth]:
        found = self._connection.execute(_IN_STATE, {"in_state": state, "most": limit})
        return [_health(row) for row in found]

    def page(self, *, state: str | None, before: tuple[int, str] | None, limit: int) -> Sequence[MachineHealth]:
        name = machines.c.machine_id + " " + machines.c.kind
        query = sa.select(machines)
        if state is not None:
            query = query.where(machines.c.state == state)
        if before is not None:
            query = query.where(sa.tuple_(machines.c.since_ms, name) < before)
        query = query.order_by(machines.c.since_ms.desc(), name.desc()).limit(limit)
        return [_health(row) for row in self._connection.execute(query)]

    def of_machine(self, machine_id: str) -> Sequence[MachineHealth]:
        query = sa.select(machines).where(machines.c.machine_id == machine_id).order_by(machines.c.kind)
        return [_health(row) for row in self._connection.execute(query)]

    def kinds_of(self, machine_id: str) -> frozenset[str]:
        found = self._connection.scalars(sa.select(nodes.c.kinds).where(nodes.c.machine_id == machine_id))
        return frozenset(kind for kinds in found for kind in kinds)

    def insert_canary(
        self,
        job_id: str,
        *,
        project_id: str,
        machine_id: str,
        spec: Mapping[str, Any],
        at_ms: int,
        deadline_at_ms: int,
    ) -> None:
        self._connection.execute(
            sa.insert(jobs).values(
                id=job_id,
                project_id=project_id,
                kind=CANARY_KIND,
                name=f"canary of {own_name(machine_id, project_id)}"[:128],
                state=JobState.QUEUED,
                spec=dict(spec),
                only_machine_id=machine_id,
                total_steps=spec.get("steps"),
                priority=0,
                labels={},
                faults=[],
                result={},
                created_at_ms=at_ms,
                deadline_at_ms=deadline_at_ms,
            )
        )

    def is_live(self, job_id: str) -> bool:
        state = self._connection.scalar(_STATE_OF_JOB, {"wanted": job_id})
        return state is not None and state not in TERMINAL

    def last_nodes(self, machine_ids: Collection[str], *, seen_since_ms: int) -> Sequence[LastNode]:
        found = self._connection.execute(_LAST_NODES, {"machines": sorted(machine_ids), "since": seen_since_ms})
        latest = {row.machine_id: LastNode(**row._mapping) for row in found}
        return list(latest.values())

    def leave(self, last_node: LastNode, fleet: str, instance: Instance, *, reason: str, at_ms: int) -> None:
        self._connection.execute(sa.update(nodes).where(nodes.c.id == last_node.node_id).values(draining=True))
        listed = {
            "fleet": fleet,
            "id": instance.id,
            "machine_id": instance.machine_id or last_node.machine_id,
            "name": instance.name,
            "state": instance.state,
            "first_listed_at_ms": at_ms,
            "last_listed_at_ms": at_ms,
            "leaving_at_ms": at_ms,
            "leaving_reason": reason,
        }
        leaving = {name: listed[name] for name in ("leaving_at_ms", "leaving_reason")}
        self._connection.execute(
            insert_for(self._dialect_name, instances)
            .values(listed)
            .on_conflict_do_update(index_elements=[instances.c.fleet, instances.c.id], set_=leaving)
        )

    def reallocations(self, fleet: str, *, since_ms: int) -> Sequence[Reallocation]:
        found = self._connection.execute(_REALLOCATIONS, {"of_fleet": fleet, "since": since_ms})
        return [Reallocation(**row._mapping) for row in found]

    def add_reallocation(self, reallocation: Reallocation) -> None:
        self._connection.execute(sa.insert(reallocations).values(**asdict(reallocation)))


def _by_key(rows: Any) -> dict[MachineKey, MachineHealth]:
    found = [_health(row) for row in rows]
    return {(each.machine_id, each.kind): each for each in found}


def _values(health: MachineHealth) -> dict[str, Any]:
    values = asdict(health)
    values["recent_failures"] = values.pop("failures")
    return values


def _health(row: Any) -> MachineHealth:
    values = dict(zip(_FIELDS, row, strict=True))
    failures = [{**each, "reason": Reason(each["reason"])} for each in values["failures"]]
    values["failures"] = tuple(Failure(**each) for each in failures)
    values["state"] = MachineState(values["state"])
    return MachineHealth(**values)


@functools.cache
def _some(dialect_name: str) -> sa.Select[Any]:
    of_them = (among(dialect_name, machines.c.machine_id, "machines"), among(dialect_name, machines.c.kind, "kinds"))
    return sa.select(machines).where(*of_them)


@functools.cache
def _lock(dialect_name: str) -> sa.Select[Any]:
    given = row_list(dialect_name, types_of(machines, "machine_id", "kind"))
    same = (machines.c.machine_id == given.c.machine_id) & (machines.c.kind == given.c.kind)
    wanted = sa.select(machines).select_from(given.join(machines, same)).order_by(*_KEY)
    return wanted.with_for_update(of=machines)
