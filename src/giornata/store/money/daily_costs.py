"""Costs of attempts on each day in UTC. An interval that lives across midnight is cut there.

Days are numbered from 1970-01-01. The days of an interval add up to its amount, to the micro-dollar: each day has the
difference of two cumulative amounts.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from giornata.domain.money import MS_PER_DAY
from giornata.protocol.specs import CANARY_KIND
from giornata.store.database.rows import ROWS, row_list
from giornata.store.money.ledger import BESIDE, FOREVER_MS, OTHER, AttemptBill, amount_micro_usd, bills_beside
from giornata.store.schema import attempts, jobs, ledger

_JOINED = ledger.join(attempts, attempts.c.id == ledger.c.attempt_id)
_FIRST_DAY, _LAST_DAY = ledger.c.from_ms // MS_PER_DAY, ledger.c.to_ms // MS_PER_DAY
_PLATFORMS = (
    sa.exists()
    .where(jobs.c.id == ledger.c.job_id, (jobs.c.kind == CANARY_KIND) | jobs.c.billed_to.is_not(None))
    .correlate(ledger)
)
"""Canaries and audits, which are paid by the operator's project and are on no other project's bill."""


_ENDED_MS = sa.func.coalesce(attempts.c.ended_at_ms, sa.literal_column(str(FOREVER_MS), sa.BigInteger))


def costs_by_day(
    connection: sa.Connection,
    dialect_name: str,
    project_id: str | None,
    days: range,
    label: str | None,
    *,
    most: int,
) -> Mapping[tuple[int, str | None], int]:
    """Return micro-dollars by (day, value of the label); None as the project: of all projects.

    At most `most` lines of attempts that had a node for themselves are read.
    """
    during = (ledger.c.from_ms < days.stop * MS_PER_DAY) & (ledger.c.to_ms >= days.start * MS_PER_DAY)
    if project_id is not None:
        during &= (ledger.c.project_id == project_id) & ~_PLATFORMS
    shared = _shared(during)
    costs: Counter[tuple[int, str | None]] = Counter()
    given = {ROWS: [{"begins_ms": day * MS_PER_DAY, "ends_ms": (day + 1) * MS_PER_DAY} for day in days]}
    for row in connection.execute(_alone(dialect_name, during & ~shared, label).limit(most), given):
        costs[row.day, row.value] += int(row.amount)
    _add_shared(connection, costs, during & shared, days, label)
    return costs


def _shared(during: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    """Return whether an attempt shared its node, for those that have an interval `during` the days.

    The attempts of each node are read once, in the order of their starts. One shared its node if another that began
    before it ends after its start, or if the next one begins before its end. One that lived for no time may count as
    another: no share depends on it.
    """
    lived = sa.select(attempts.c.node_id, attempts.c.started_at_ms, _ENDED_MS.label("ended_ms"))
    lived_then = lived.select_from(_JOINED).where(during).cte("lived_then")
    first, last = (
        sa.select(one).scalar_subquery()
        for one in (sa.func.min(lived_then.c.started_at_ms), sa.func.max(lived_then.c.ended_ms))
    )
    node, order = attempts.c.node_id, (attempts.c.started_at_ms, attempts.c.id)
    until_ms = sa.func.max(_ENDED_MS).over(partition_by=node, order_by=order, rows=(None, -1))
    next_ms = sa.func.lead(attempts.c.started_at_ms).over(partition_by=node, order_by=order)
    swept = (
        sa.select(attempts.c.id, ((until_ms > attempts.c.started_at_ms) | (next_ms < _ENDED_MS)).label("shared"))
        .where(attempts.c.node_id.in_(sa.select(lived_then.c.node_id)), attempts.c.started_at_ms < last)
        .where(attempts.c.ended_at_ms.is_(None) | (attempts.c.ended_at_ms > first))
        .subquery("swept")
    )
    return ledger.c.attempt_id.in_(sa.select(swept.c.id).where(swept.c.shared))


def _alone(dialect_name: str, during: sa.ColumnElement[bool], label: str | None) -> sa.Select[Any]:
    """Return the sums over attempts that had their node for themselves."""
    within = (
        sa.select(_FIRST_DAY.label("day"), ledger.c.job_id, ledger.c.amount_micro_usd.label("amount"))
        .select_from(_JOINED)
        .where(during, _FIRST_DAY == _LAST_DAY)
    )
    day = row_list(dialect_name, {"begins_ms": sa.BigInteger(), "ends_ms": sa.BigInteger()})
    across = (
        sa.select(day.c.begins_ms // MS_PER_DAY, ledger.c.job_id, _before(day.c.ends_ms) - _before(day.c.begins_ms))
        .select_from(_JOINED.join(day, (ledger.c.from_ms < day.c.ends_ms) & (ledger.c.to_ms > day.c.begins_ms)))
        .where(during, _FIRST_DAY != _LAST_DAY)
    )
    lines = sa.union_all(within, across).subquery("lines")
    value = sa.null() if label is None else jobs.c.labels[label].as_string()
    valued = sa.select(lines.c.day, value.label("value"), lines.c.amount).join(jobs, jobs.c.id == lines.c.job_id)
    named = valued.subquery("valued")
    return (
        sa.select(named.c.day, named.c.value, sa.func.sum(named.c.amount).label("amount"))
        .group_by(named.c.day, named.c.value)
        .order_by(named.c.day.desc())
    )


def _before(instant_ms: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    """Return an interval's cost from before this instant."""
    so_far = amount_micro_usd(ledger.c.price_micro_usd_per_hour, instant_ms - ledger.c.from_ms)
    return sa.case(
        (ledger.c.from_ms >= instant_ms, 0), (ledger.c.to_ms <= instant_ms, ledger.c.amount_micro_usd), else_=so_far
    )


def _add_shared(
    connection: sa.Connection,
    costs: Counter[tuple[int, str | None]],
    during: sa.ColumnElement[bool],
    days: range,
    label: str | None,
) -> None:
    """Add what attempts cost that shared their nodes, each by its share."""
    value = sa.null() if label is None else jobs.c.labels[label].as_string()
    together = (
        sa.select(ledger.c.attempt_id, ledger.c.job_id, OTHER.c.id.label("other_id"), value.label("value"))
        .select_from(_JOINED.join(OTHER, BESIDE).join(jobs, jobs.c.id == ledger.c.job_id))
        .where(during)
    )
    pairs: dict[str, set[tuple[str, str]]] = defaultdict(set)
    values: dict[tuple[str, str], str | None] = {}
    for row in connection.execute(together):
        pairs[row.attempt_id].add((row.attempt_id, row.other_id))
        values[row.attempt_id, row.job_id] = row.value
    every = sorted(set().union(*pairs.values()))
    for attempt_id, bill, beside in bills_beside(connection, every):
        for day, by_job in _days_of(bill, beside, days):
            for job_id, amount in by_job.items():
                if (attempt_id, job_id) in values:
                    costs[day, values[attempt_id, job_id]] += amount


def _days_of(
    bill: AttemptBill, beside: Sequence[AttemptBill], days: range
) -> Iterable[tuple[int, Mapping[str, int]]]:
    """Yield the days that an attempt lived on, with its share by job."""
    first, last = bill.intervals[0].from_ms // MS_PER_DAY, bill.intervals[-1].to_ms // MS_PER_DAY
    for day in range(max(first, days.start), min(last + 1, days.stop)):
        before = bill.by_job(beside, until_ms=day * MS_PER_DAY)
        after = bill.by_job(beside, until_ms=(day + 1) * MS_PER_DAY)
        yield day, {job_id: amount - before[job_id] for job_id, amount in after.items()}
