"""Queries for the costs of instances, nodes and attempts in a stretch of time."""

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.user_queries import money_store
from giornata.control.ports.user_queries.money_store import BilledHost, FleetTime, StayRecord, WorkRecord
from giornata.domain.billing.accounting import run_of
from giornata.domain.billing.budget import Spent
from giornata.domain.billing.costs import Billed, Interval
from giornata.domain.jobs.job import JobState
from giornata.domain.jobs.reasons import Reason
from giornata.store.database.rows import Queries
from giornata.store.money.daily_costs import costs_by_day
from giornata.store.money.ledger import EVER_MS, join_beside, shares_from
from giornata.store.schema import attempts, billed_intervals, fleet_time, fleets, instances, jobs, ledger, nodes

_RUN = ("started_at_ms", "first_step_at_ms", "renewed_at_ms", "ended_at_ms", "lapsed", "reason")
_STEPS = ("start_step", "last_step", "committed_step")
_PARTS_OF_TIME = ("startup_ms", "useful_ms", "lost_ms", "at_risk_ms", "idle_ms", "billed_micro_usd")
_TOLD = ("first_step", "stepped_to", "stepped_at_ms")
_BILLED = (
    sa.select(*(billed_intervals.c[name] for name in ("fleet", "instance_id", "from_ms", "to_ms")))
    .add_columns(billed_intervals.c.price_micro_usd_per_hour, instances.c.last_listed_at_ms, instances.c.ended_at_ms)
    .add_columns(fleets.c.seen_at_ms, fleets.c.told_at_ms)
    .join(
        instances,
        (instances.c.fleet == billed_intervals.c.fleet) & (instances.c.id == billed_intervals.c.instance_id),
    )
    .outerjoin(fleets, fleets.c.name == billed_intervals.c.fleet)
    .where(billed_intervals.c.from_ms < sa.bindparam("before"))
    .where(billed_intervals.c.to_ms.is_(None) | (billed_intervals.c.to_ms > sa.bindparam("since")))
    .order_by(billed_intervals.c.fleet, billed_intervals.c.instance_id, billed_intervals.c.seq)
)

# Steps are those of training: a lease of pictures has none.
_STEPS_OF_JOB = (sa.case((attempts.c.pictures > 0, 0), else_=attempts.c[name]).label(name) for name in _STEPS)
# A lease ends well whatever becomes of the orders that it has pictures of.
_JOB_SUCCEEDED = (attempts.c.reason == Reason.SUCCEEDED) & (
    (attempts.c.pictures == 0) | (jobs.c.state == JobState.SUCCEEDED)
)
# A row for each job that an attempt worked for: one, or the orders of its pictures.
_WORK = (
    sa.select(attempts.c.id, ledger.c.job_id, attempts.c.reason, *_STEPS_OF_JOB)
    .add_columns(_JOB_SUCCEEDED.label("job_succeeded"))
    .add_columns(sa.cast(sa.func.sum(ledger.c.amount_micro_usd), sa.BigInteger).label("amount_micro_usd"))
    .select_from(attempts.join(ledger, ledger.c.attempt_id == attempts.c.id).join(jobs, jobs.c.id == ledger.c.job_id))
    .group_by(attempts.c.id, ledger.c.job_id, jobs.c.state)
)


class CostQueries(Queries, money_store.CostQueries):
    def hosts(self, *, from_ms: int, before_ms: int) -> list[BilledHost]:
        found = self._instances(from_ms, before_ms)
        for row in self._nodes(from_ms, before_ms):
            known = found.get(_key_of_node(row))
            if known is None:
                found[row.id] = _node(row)
            else:
                found[known.key] = _joined(known, row)
        return list(found.values())

    def stays(self, *, from_ms: int, before_ms: int) -> list[StayRecord]:
        known = self._instances(from_ms, before_ms)
        alive = (attempts.c.started_at_ms < before_ms) & (
            attempts.c.ended_at_ms.is_(None) | (attempts.c.ended_at_ms > from_ms)
        )
        query = (
            sa.select(*(attempts.c[name] for name in (*_RUN, *_STEPS, *_TOLD)), attempts.c.id.label("attempt_id"))
            .add_columns(nodes.c.id, nodes.c.fleet, nodes.c.instance_id, ledger.c.from_ms, ledger.c.to_ms)
            .join(nodes, nodes.c.id == attempts.c.node_id)
            .join(ledger, ledger.c.attempt_id == attempts.c.id)
            .where(alive)
            .order_by(attempts.c.id, ledger.c.seq)
        )
        rows: dict[str, list[Any]] = defaultdict(list)
        for row in self._connection.execute(query):
            rows[row.attempt_id].append(row)
        return [_stay(of_one, known) for of_one in rows.values()]

    def work(self, project_id: str | None, *, from_ms: int, before_ms: int) -> list[WorkRecord]:
        began = (attempts.c.started_at_ms >= from_ms) & (attempts.c.started_at_ms < before_ms)
        # Of the ledger's project: one lease has pictures of several projects' orders.
        mine = began if project_id is None else began & (ledger.c.project_id == project_id)
        found = {(row.id, row.job_id): row for row in self._connection.execute(_WORK.where(mine))}
        together = join_beside(
            lambda joined, other_id: (
                sa.select(attempts.c.id, other_id)
                .select_from(joined.join(ledger, ledger.c.attempt_id == attempts.c.id))
                .where(mine)
                .distinct()
            )
        )
        pairs = [(one, two) for one, two in self._connection.execute(sa.union_all(*together))]
        shared = shares_from(self._connection, pairs, from_ms=EVER_MS)
        return [_work(row, shared.get(key)) for key, row in found.items()]

    def keep_fleet_time(self, hours: Mapping[int, Sequence[FleetTime]], *, kept_since_ms: int) -> None:
        old = fleet_time.c.hour_ms.in_(list(hours)) | (fleet_time.c.hour_ms < kept_since_ms)
        self._connection.execute(sa.delete(fleet_time).where(old))
        rows = [{"hour_ms": hour_ms, **asdict(each)} for hour_ms, found in hours.items() for each in found]
        if rows:
            self._connection.execute(sa.insert(fleet_time), rows)

    def last_fleet_hour_ms(self) -> int | None:
        latest: int | None = self._connection.scalar(sa.select(sa.func.max(fleet_time.c.hour_ms)))
        return latest

    def fleet_time(self, *, since_ms: int) -> list[FleetTime]:
        sums = (sa.cast(sa.func.sum(fleet_time.c[name]), sa.BigInteger).label(name) for name in _PARTS_OF_TIME)
        query = sa.select(fleet_time.c.fleet, *sums).where(fleet_time.c.hour_ms >= since_ms)
        rows = self._connection.execute(query.group_by(fleet_time.c.fleet).order_by(fleet_time.c.fleet))
        return [FleetTime(**row._mapping) for row in rows]

    def by_day(
        self, project_id: str | None, days: range, *, label: str | None, most: int
    ) -> Mapping[tuple[int, str | None], int]:
        return costs_by_day(self._connection, self._dialect_name, project_id, days, label, most=most)

    def _instances(self, from_ms: int, before_ms: int) -> dict[str, BilledHost]:
        """Return the instances that were billed in the time, by key."""
        rows: dict[tuple[str, str], list[Any]] = defaultdict(list)
        for row in self._connection.execute(_BILLED, {"since": from_ms, "before": before_ms}):
            if _until_ms(row) > from_ms:
                rows[row.fleet, row.instance_id].append(row)
        found = (_instance(fleet, instance_id, of_one) for (fleet, instance_id), of_one in rows.items())
        return {host.key: host for host in found}

    def _nodes(self, from_ms: int, before_ms: int) -> Sequence[Any]:
        query = sa.select(nodes).where(nodes.c.first_seen_at_ms < before_ms, nodes.c.last_seen_at_ms > from_ms)
        return self._connection.execute(query).all()


def _instance(fleet: str, instance_id: str, rows: Sequence[Any]) -> BilledHost:
    billed = tuple(_billed(row.from_ms, _until_ms(row), row.price_micro_usd_per_hour) for row in rows)
    return BilledHost(key=f"{fleet}/{instance_id}", fleet=fleet, billed=billed, ready_at_ms=None)


def _until_ms(row: Any) -> int:
    """Return the end of a billed interval.

    An instance that is billed still was there when its fleet was last listed, and until it was asked to end.
    """
    if row.to_ms is not None:
        return int(row.to_ms)
    asked_ms = 0 if row.ended_at_ms is None else max(row.ended_at_ms, row.told_at_ms or 0)
    return int(max(row.last_listed_at_ms, row.seen_at_ms or 0, asked_ms))


def _node(row: Any) -> BilledHost:
    billed = _billed(row.first_seen_at_ms, row.last_seen_at_ms, row.price_micro_usd_per_hour)
    return BilledHost(key=row.id, fleet=row.fleet, billed=(billed,), ready_at_ms=row.first_seen_at_ms)


def _billed(from_ms: int, to_ms: int, price: int) -> Billed:
    return Billed(interval=Interval(from_ms=from_ms, to_ms=max(from_ms, to_ms)), price_micro_usd_per_hour=price)


def _joined(host: BilledHost, row: Any) -> BilledHost:
    """Return the instance with a node on it. The node says what it costs, where the provider does not."""
    ready = [at for at in (host.ready_at_ms, row.first_seen_at_ms) if at is not None]
    price = row.price_micro_usd_per_hour
    billed = tuple(
        replace(each, price_micro_usd_per_hour=each.price_micro_usd_per_hour or price) for each in host.billed
    )
    return replace(host, billed=billed, ready_at_ms=min(ready))


def _key_of_node(row: Any) -> str:
    return f"{row.fleet}/{row.instance_id}"


def _stay(rows: Sequence[Any], known: Container[str]) -> StayRecord:
    first = rows[0]
    key = _key_of_node(first)
    return StayRecord(
        host_key=key if key in known else first.id,
        run=replace(run_of(first), **{name: getattr(first, name) for name in _TOLD}),
        # A lease of pictures has one interval, with a row for each order.
        intervals=tuple(dict.fromkeys(Interval(from_ms=row.from_ms, to_ms=row.to_ms) for row in rows)),
    )


def _work(row: Any, shared: Spent | None) -> WorkRecord:
    """Return the record; `shared` is what was paid where the attempt shared its node."""
    values = {name: row._mapping[name] for name in WorkRecord.__slots__}
    amount = row.amount_micro_usd if shared is None else shared.total_micro_usd
    return WorkRecord(**values | {"amount_micro_usd": amount, "job_succeeded": bool(row.job_succeeded)})
