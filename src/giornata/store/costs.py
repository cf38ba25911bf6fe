"""What instances, nodes and attempts cost in a stretch of time."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.money_store import Host, StayRecord, WorkRecord
from giornata.domain.accounting import run_of
from giornata.domain.sharing import Interval
from giornata.store.beside import BESIDE, OTHER
from giornata.store.bills import shares
from giornata.store.schema import attempts, instances, jobs, ledger, nodes

_RUN = ("started_at_ms", "first_step_at_ms", "renewed_at_ms", "ended_at_ms", "lapsed", "reason")
_STEPS = ("start_step", "last_step", "committed_step")


class CostQueries:
    """See `giornata.control.ports.money_store.Costs`."""

    def __init__(self, connection: sa.Connection, _dialect_name: str) -> None:
        self._connection = connection

    def hosts(self, *, from_ms: int, before_ms: int) -> list[Host]:
        found = {host.key: host for host in map(_instance, self._instances(from_ms, before_ms))}
        for row in self._nodes(from_ms, before_ms):
            known = found.get(_key_of_node(row))
            if known is None:
                found[row.id] = _node(row)
            else:
                found[known.key] = _joined(known, row)
        return list(found.values())

    def stays(self, *, from_ms: int, before_ms: int) -> list[StayRecord]:
        known = {row.key for row in map(_instance, self._instances(from_ms, before_ms))}
        alive = (attempts.c.started_at_ms < before_ms) & (
            attempts.c.ended_at_ms.is_(None) | (attempts.c.ended_at_ms > from_ms)
        )
        query = (
            sa.select(*(attempts.c[name] for name in (*_RUN, *_STEPS)), attempts.c.id.label("attempt_id"))
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
        mine = began if project_id is None else began & (jobs.c.project_id == project_id)
        paid = sa.func.coalesce(sa.func.sum(ledger.c.amount_micro_usd), 0)
        query = (
            sa.select(attempts.c.id, attempts.c.job_id, attempts.c.reason, *(attempts.c[name] for name in _STEPS))
            .add_columns(sa.cast(paid, sa.BigInteger).label("amount_micro_usd"))
            .join(jobs, jobs.c.id == attempts.c.job_id)
            .outerjoin(ledger, ledger.c.attempt_id == attempts.c.id)
            .where(mine)
            .group_by(attempts.c.id)
        )
        found = {row.id: _work(row) for row in self._connection.execute(query)}
        together = (
            sa.select(attempts.c.id, OTHER.c.id.label("other_id"))
            .select_from(attempts)
            .join(OTHER, BESIDE)
            .join(jobs, jobs.c.id == attempts.c.job_id)
            .where(mine)
        )
        pairs = [(one, two) for one, two in self._connection.execute(together)]
        for attempt_id, amount in shares(self._connection, pairs).items():
            found[attempt_id] = replace(found[attempt_id], amount_micro_usd=amount)
        return list(found.values())

    def _instances(self, from_ms: int, before_ms: int) -> Sequence[Any]:
        until = sa.func.coalesce(instances.c.gone_at_ms, instances.c.last_listed_at_ms)
        query = sa.select(instances, until.label("until_ms"))
        return self._connection.execute(query.where(instances.c.running_at_ms < before_ms, until > from_ms)).all()

    def _nodes(self, from_ms: int, before_ms: int) -> Sequence[Any]:
        query = sa.select(nodes).where(nodes.c.first_seen_at_ms < before_ms, nodes.c.last_seen_at_ms > from_ms)
        return self._connection.execute(query).all()


def _instance(row: Any) -> Host:
    return Host(
        key=f"{row.fleet}/{row.id}",
        fleet=row.fleet,
        from_ms=row.running_at_ms,
        to_ms=row.until_ms,
        ready_at_ms=None,
        price_micro_usd_per_hour=row.price_micro_usd_per_hour,
    )


def _node(row: Any) -> Host:
    return Host(
        key=row.id,
        fleet=row.fleet,
        from_ms=row.first_seen_at_ms,
        to_ms=row.last_seen_at_ms,
        ready_at_ms=row.first_seen_at_ms,
        price_micro_usd_per_hour=row.price_micro_usd_per_hour,
    )


def _joined(host: Host, row: Any) -> Host:
    """The instance, knowing of a node on it: it may have been seen before the provider listed it as running."""
    ready = [at for at in (host.ready_at_ms, row.first_seen_at_ms) if at is not None]
    return replace(
        host,
        from_ms=min(host.from_ms, row.first_seen_at_ms),
        ready_at_ms=min(ready),
        price_micro_usd_per_hour=host.price_micro_usd_per_hour or row.price_micro_usd_per_hour,
    )


def _key_of_node(row: Any) -> str:
    return f"{row.fleet}/{row.instance_id}"


def _stay(rows: Sequence[Any], known: set[str]) -> StayRecord:
    first = rows[0]
    key = _key_of_node(first)
    return StayRecord(
        host_key=key if key in known else first.id,
        run=run_of(first),
        intervals=tuple(Interval(from_ms=row.from_ms, to_ms=row.to_ms) for row in rows),
    )


def _work(row: Any) -> WorkRecord:
    return WorkRecord(**{name: getattr(row, name) for name in WorkRecord.__slots__})
