"""Fleets, their instances, and the nodes on them. See `giornata.control.ports.node_queries.fleet_store`."""

import functools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.node_queries import fleet_store
from giornata.control.ports.node_queries.fleet_store import (
    BilledRow,
    Deadline,
    FleetNode,
    FleetRow,
    InstanceRow,
    Joinable,
)
from giornata.domain.fleets.starts import NodeStart
from giornata.domain.jobs.job import JobState
from giornata.store.database.rows import Queries, insert_for
from giornata.store.jobs.claiming import FOR_ANYONE
from giornata.store.schema import (
    attempts,
    billed_intervals,
    fleet_prices,
    fleets,
    instances,
    jobs,
    machines,
    nodes,
    reallocations,
)

QUARANTINED = "quarantined"
_FLEET = tuple(fleets.c[name] for name in FleetRow.__slots__)
_INSTANCE = tuple(instances.c[name] for name in InstanceRow.__slots__)
# What a listing says; the rest is our own.
_LISTED = (
    "machine_id",
    "name",
    "state",
    "price_micro_usd_per_hour",
    "last_listed_at_ms",
    "gone_at_ms",
    "trouble",
    "offer",
)
_STARTS = ("restarts", "began_at_ms", "failed_starts")
_NODE = (
    *("id", "project_id", "machine_id", "name", "instance_id", "kinds", "vram_bytes", "places", "draining"),
    *("first_seen_at_ms", "last_seen_at_ms", "start"),
)
# To five minutes: jobs with deadlines of their own would be groups of one.
_DEADLINE = (jobs.c.deadline_at_ms - jobs.c.deadline_at_ms % 300_000).label("deadline_at_ms")
# A constant in the text, because a planner cannot prove that a parameter matches a partial index.
WITH_DEADLINE = sa.literal_column(
    "jobs.state IN ('queued', 'running', 'paused') AND jobs.deadline_at_ms IS NOT NULL", sa.Boolean
)
_of_node = attempts.c.node_id == nodes.c.id
_live = sa.select(sa.func.count()).where(_of_node, attempts.c.ended_at_ms.is_(None)).scalar_subquery()
_ended = sa.select(sa.func.max(attempts.c.ended_at_ms)).where(_of_node).scalar_subquery()
# Idle times of nodes at work are not asked for, and these nodes have the longest histories.
_idle_since = sa.case((_live > 0, nodes.c.last_seen_at_ms), else_=sa.func.coalesce(_ended, nodes.c.first_seen_at_ms))
_at_work = (
    sa.select(sa.func.max(jobs.c.joint_key))
    .join(attempts, attempts.c.job_id == jobs.c.id)
    .where(_of_node, attempts.c.ended_at_ms.is_(None))
    .scalar_subquery()
)
_joint_key = sa.case((nodes.c.places > 1, _at_work), else_=None)
# Made once: building a statement costs more than running it.
_BY_NAME = sa.select(*_FLEET).where(fleets.c.name == sa.bindparam("fleet"))
_LOCK = _BY_NAME.with_for_update()
_FLEETS = sa.select(*_FLEET).order_by(fleets.c.name)
# Unsorted: SQLite would walk all that were ever there in that order.
MOST_TROUBLES = 50
_OF_FLEET = sa.select(*_INSTANCE).where(instances.c.fleet == sa.bindparam("fleet"))
_PRESENT = _OF_FLEET.where(instances.c.gone_at_ms.is_(None))
_GONE = _OF_FLEET.where(instances.c.gone_at_ms >= sa.bindparam("since"))
_MANY = sa.func.count().label("number")
_TROUBLES = (
    sa.select(instances.c.fleet, instances.c.trouble, _MANY)
    .where(instances.c.gone_at_ms.is_(None), instances.c.trouble != "")
    .group_by(instances.c.fleet, instances.c.trouble)
    .order_by(_MANY.desc())
    .limit(MOST_TROUBLES)
)
_NODES: sa.Select[Any] = (
    sa.select(
        *(nodes.c[name] for name in _NODE),
        _live.label("live"),
        _idle_since.label("idle_since_ms"),
        _joint_key.label("joint_key"),
    )
    # Not by the index of the fleet's instances, which has all that were ever there.
    .where(
        sa.func.coalesce(nodes.c.fleet, "") == sa.bindparam("fleet"), nodes.c.last_seen_at_ms >= sa.bindparam("since")
    )
    .order_by(nodes.c.last_seen_at_ms.desc(), nodes.c.id)
)
_DRAIN = (
    sa.update(nodes)
    .where(nodes.c.id.in_(sa.bindparam("wanted", expanding=True)))
    .values(draining=sa.bindparam("told"))
)
_LEASES = (
    sa.select(attempts.c.id)
    .join(nodes, _of_node)
    .where(attempts.c.ended_at_ms.is_(None), ~attempts.c.lapsed)
    .where(
        nodes.c.fleet == sa.bindparam("fleet"),
        nodes.c.instance_id.in_(sa.bindparam("wanted", expanding=True)),
    )
    .order_by(attempts.c.id)
)
_later = billed_intervals.alias("later")
_same = (_later.c.fleet == billed_intervals.c.fleet, _later.c.instance_id == billed_intervals.c.instance_id)
_LATEST_BILLED = sa.select(billed_intervals).where(
    billed_intervals.c.fleet == sa.bindparam("fleet"),
    billed_intervals.c.instance_id.in_(sa.bindparam("wanted", expanding=True)),
    ~sa.exists().where(*_same, _later.c.seq > billed_intervals.c.seq),
)
_UNFIT = sa.select(machines.c.machine_id).where(machines.c.state == QUARANTINED)
_REALLOCATIONS = (
    sa.select(sa.func.count())
    .select_from(reallocations)
    .where(reallocations.c.fleet == sa.bindparam("fleet"), reallocations.c.at_ms >= sa.bindparam("since"))
)
_PRICES = (
    sa.select(fleet_prices.c.at_ms, fleet_prices.c.price_micro_usd_per_hour)
    .where(fleet_prices.c.fleet == sa.bindparam("fleet"))
    .order_by(fleet_prices.c.at_ms.desc())
    .limit(sa.bindparam("most"))
)
_alike = (jobs.c.kind, jobs.c.min_vram_bytes, jobs.c.project_id, _DEADLINE)
# A range that all are in, and no condition that an index of the whole queue has: SQLite would take that one.
_for_anyone = sa.func.coalesce(jobs.c.only_machine_id, "") == ""
_DEADLINES: sa.Select[Any] = (
    sa.select(*_alike, sa.func.count().label("jobs"))
    .where(WITH_DEADLINE, jobs.c.deadline_at_ms > 0, jobs.c.state == JobState.QUEUED, _for_anyone)
    .group_by(*_alike)
)
# The next of a joint key, and since when they wait: a job that was interrupted since its last attempt ended. Only
# jobs that train have such keys.
_HEADS = (
    sa.select(
        jobs.c.kind,
        jobs.c.min_vram_bytes,
        jobs.c.project_id,
        jobs.c.created_at_ms,
        attempts.c.ended_at_ms,
    )
    .join(attempts, attempts.c.id == jobs.c.attempt_id, isouter=True)
    .where(FOR_ANYONE, jobs.c.kind == sa.literal_column("'train'"), jobs.c.joint_key == sa.bindparam("wanted"))
    .order_by(jobs.c.interrupted.desc(), jobs.c.priority.desc(), jobs.c.turn, jobs.c.id)
    .limit(sa.bindparam("most"))
)


class Fleets(Queries, fleet_store.Fleets):
    def get(self, name: str) -> FleetRow | None:
        return self._one(_BY_NAME, name)

    def lock(self, name: str) -> FleetRow | None:
        return self._one(_LOCK, name)

    def all(self) -> Sequence[FleetRow]:
        return [FleetRow(**row._mapping) for row in self._connection.execute(_FLEETS)]

    def put(self, name: str, *, driver: str, at_ms: int, desired: int) -> None:
        row = {"name": name, "driver": driver, "desired": desired, "seen_at_ms": at_ms}
        self._connection.execute(_put_fleet(self._dialect_name), row)

    def update(self, name: str, **columns: Any) -> None:
        self._connection.execute(_update(tuple(columns)), {"fleet": name, **columns})

    def instances(self, fleet: str) -> Sequence[InstanceRow]:
        return self._instances(_PRESENT, fleet=fleet)

    def troubles(self) -> Sequence[tuple[str, str, int]]:
        return [(row.fleet, row.trouble, int(row.number)) for row in self._connection.execute(_TROUBLES)]

    def gone_since(self, fleet: str, *, since_ms: int) -> Sequence[InstanceRow]:
        return self._instances(_GONE, fleet=fleet, since=since_ms)

    def put_instance(self, instance: InstanceRow) -> None:
        row = {name: getattr(instance, name) for name in InstanceRow.__slots__}
        self._connection.execute(_put_instance(self._dialect_name), row)

    def update_instances(self, fleet: str, ids: Collection[str], **columns: Any) -> None:
        which = {"of_fleet": fleet, "wanted": sorted(ids)}
        self._connection.execute(_update_instances(tuple(columns)), {**which, **columns})

    def billed(self, fleet: str, ids: Collection[str]) -> Mapping[str, BilledRow]:
        rows = self._connection.execute(_LATEST_BILLED, {"fleet": fleet, "wanted": sorted(ids)})
        return {row.instance_id: BilledRow(**row._mapping) for row in rows}

    def put_billed(self, intervals: Sequence[BilledRow]) -> None:
        rows = [{name: getattr(each, name) for name in BilledRow.__slots__} for each in intervals]
        if rows:
            self._connection.execute(_put_billed(self._dialect_name), rows)

    def nodes(self, fleet: str, *, seen_since_ms: int) -> Sequence[FleetNode]:
        rows = (row._asdict() for row in self._connection.execute(_NODES, {"fleet": fleet, "since": seen_since_ms}))
        return [FleetNode(**{**row, "kinds": tuple(row["kinds"]), "start": NodeStart(row["start"])}) for row in rows]

    def drain(self, node_ids: Collection[str], *, draining: bool = True) -> None:
        self._connection.execute(_DRAIN, {"wanted": sorted(node_ids), "told": draining})

    def leases_on(self, fleet: str, instance_ids: Collection[str]) -> Sequence[str]:
        which = {"fleet": fleet, "wanted": sorted(instance_ids)}
        return list(self._connection.scalars(_LEASES, which))

    def unfit_machines(self) -> frozenset[str]:
        return frozenset(self._connection.scalars(_UNFIT))

    def add_reallocation(
        self, fleet: str, instance_id: str, *, machine_id: str | None, reason: str, at_ms: int
    ) -> None:
        row = {"fleet": fleet, "instance_id": instance_id, "machine_id": machine_id, "reason": reason, "at_ms": at_ms}
        self._connection.execute(sa.insert(reallocations).values(row))

    def reallocations(self, fleet: str, *, since_ms: int) -> int:
        return self._connection.scalar(_REALLOCATIONS, {"fleet": fleet, "since": since_ms}) or 0

    def add_price(self, fleet: str, *, price_micro_usd_per_hour: int, at_ms: int, kept_since_ms: int) -> None:
        old = (fleet_prices.c.fleet == fleet) & (fleet_prices.c.at_ms < kept_since_ms)
        self._connection.execute(sa.delete(fleet_prices).where(old))
        row = {"fleet": fleet, "at_ms": at_ms, "price_micro_usd_per_hour": price_micro_usd_per_hour}
        statement = insert_for(self._dialect_name, fleet_prices).values(row)
        said = {"price_micro_usd_per_hour": statement.excluded.price_micro_usd_per_hour}
        key = list(fleet_prices.primary_key)
        self._connection.execute(statement.on_conflict_do_update(index_elements=key, set_=said))

    def prices(self, fleet: str, *, most: int) -> Sequence[tuple[int, int]]:
        found = self._connection.execute(_PRICES, {"fleet": fleet, "most": most})
        return [(row.at_ms, row.price_micro_usd_per_hour) for row in found]

    def joinable(self, room: Mapping[str, int], *, queued_since_ms: int) -> Sequence[Joinable]:
        counted: Counter[tuple[str, int, str, str]] = Counter()
        for joint_key, most in sorted(room.items()):
            rows = self._connection.execute(_HEADS, {"wanted": joint_key, "most": most})
            counted.update(
                (row.kind, row.min_vram_bytes, row.project_id, joint_key)
                for row in rows
                if max(row.created_at_ms, row.ended_at_ms or 0) >= queued_since_ms
            )
        return [
            Joinable(kind=kind, min_vram_bytes=vram, project_id=project, joint_key=joint_key, jobs=count)
            for (kind, vram, project, joint_key), count in counted.items()
        ]

    def deadlines(self) -> Sequence[Deadline]:
        return [Deadline(**row._mapping) for row in self._connection.execute(_DEADLINES)]

    def _one(self, query: sa.Select[Any], name: str) -> FleetRow | None:
        row = self._connection.execute(query, {"fleet": name}).first()
        return None if row is None else FleetRow(**row._mapping)

    def _instances(self, query: sa.Select[Any], **values: Any) -> Sequence[InstanceRow]:
        rows = self._connection.execute(query, values)
        found = (InstanceRow(**dict(zip(InstanceRow.__slots__, row, strict=True))) for row in rows)
        return sorted(found, key=lambda each: each.id)


@functools.cache
def _put_fleet(dialect_name: str) -> Any:
    return insert_for(dialect_name, fleets).on_conflict_do_nothing()


@functools.cache
def _update(names: tuple[str, ...]) -> sa.Update:
    """Return the update of these columns. The use cases set only a few combinations of columns."""
    statement = sa.update(fleets).where(fleets.c.name == sa.bindparam("fleet"))
    return statement.values({name: sa.bindparam(name) for name in names})


@functools.cache
def _update_instances(names: tuple[str, ...]) -> sa.Update:
    which = instances.c.id.in_(sa.bindparam("wanted", expanding=True))
    statement = sa.update(instances).where(instances.c.fleet == sa.bindparam("of_fleet"), which)
    return statement.values({name: sa.bindparam(name) for name in names})


@functools.cache
def _put_instance(dialect_name: str) -> Any:
    statement = insert_for(dialect_name, instances)
    listed = {name: statement.excluded[name] for name in (*_LISTED, *_STARTS)}
    listed["running_at_ms"] = sa.func.coalesce(instances.c.running_at_ms, statement.excluded.running_at_ms)
    return statement.on_conflict_do_update(index_elements=[instances.c.fleet, instances.c.id], set_=listed)


@functools.cache
def _put_billed(dialect_name: str) -> Any:
    statement = insert_for(dialect_name, billed_intervals)
    said = {name: statement.excluded[name] for name in ("to_ms", "price_micro_usd_per_hour")}
    return statement.on_conflict_do_update(index_elements=list(billed_intervals.primary_key), set_=said)
