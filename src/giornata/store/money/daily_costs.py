"""Costs of attempts on each day in UTC. An interval that lives across midnight is cut there.

Days are numbered from 1970-01-01. The days of an interval add up to its amount, to the micro-dollar: each day has the
difference of two cumulative amounts.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import sqlalchemy as sa

from giornata.domain.billing.money import MS_PER_DAY
from giornata.protocol.specs import CANARY_KIND
from giornata.store.database.rows import ROWS, row_list
from giornata.store.money.ledger import (
    ENDED_MS,
    AttemptBill,
    amount_micro_usd,
    bills_beside,
    ever_shared,
    join_beside,
)
from giornata.store.schema import attempts, jobs, ledger
from giornata.store.schema.work import LONG

_PLATFORMS = (
    sa.exists()
    .where(jobs.c.id == ledger.c.job_id, (jobs.c.kind == CANARY_KIND) | jobs.c.billed_to.is_not(None))
    .correlate(ledger)
)
"""Canaries and audits, which are paid by the operator's project and are on no other project's bill."""
_LIVE = attempts.c.ended_at_ms.is_(None)
# As in the index: a planner has to see that one implies the other.
_LONG = sa.literal_column(LONG.replace("ended", "attempts.ended").replace("started", "attempts.started"), sa.Boolean)


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
    lines = _intervals(project_id, days)
    lived = sa.select(attempts.c.node_id, attempts.c.started_at_ms, ENDED_MS.label("ended_ms"))
    lived_then = lived.where(attempts.c.id.in_(sa.select(lines.c.attempt_id))).cte("lived_then")
    shared = lines.c.attempt_id.in_(ever_shared(lived_then))
    costs: Counter[tuple[int, str | None]] = Counter()
    given = {ROWS: [{"begins_ms": day * MS_PER_DAY, "ends_ms": (day + 1) * MS_PER_DAY} for day in days]}
    for row in connection.execute(_alone(dialect_name, lines, ~shared, label).limit(most), given):
        costs[row.day, row.value] += int(row.amount)
    value = sa.null() if label is None else jobs.c.labels[label].as_string()
    together = join_beside(
        lambda joined, other_id: (
            sa.select(lines.c.attempt_id, lines.c.job_id, other_id, value.label("value"))
            .select_from(
                joined.join(lines, lines.c.attempt_id == attempts.c.id).join(jobs, jobs.c.id == lines.c.job_id)
            )
            .where(shared)
        )
    )
    _add_shared(connection, costs, sa.union_all(*together), days)
    return costs


def _intervals(project_id: str | None, days: range) -> sa.CTE:
    """Return the rows of the ledger that reach the days.

    No index has the ends of intervals, which every heartbeat moves. So they are found by what does not move. Those of
    a project that began at most two days before are found by their start. One that began earlier belongs to an
    attempt that lives, or that lived for more than a day. Those of all projects are found by the ends of their
    attempts. A day more is read, because the clocks of servers differ.
    """
    begins_ms, ends_ms = days.start * MS_PER_DAY, days.stop * MS_PER_DAY
    during = (ledger.c.from_ms < ends_ms) & (ledger.c.to_ms >= begins_ms)
    ended = attempts.c.ended_at_ms >= begins_ms - MS_PER_DAY
    # Cut off by the start of the attempt, too: an index has it, and the rows of the ledger are not read for it.
    of_attempts = (
        sa.select(ledger)
        .select_from(attempts.join(ledger, ledger.c.attempt_id == attempts.c.id))
        .where(attempts.c.started_at_ms < ends_ms + MS_PER_DAY)
    )
    if project_id is None:
        parts = [of_attempts.where(each, during) for each in (_LIVE, ended)]
    else:
        during &= (ledger.c.project_id == project_id) & ~_PLATFORMS
        early = ledger.c.from_ms < begins_ms - 2 * MS_PER_DAY
        parts = [
            sa.select(ledger).where(during, ~early),
            *(of_attempts.where(each, during, early) for each in (_LIVE, ended & _LONG)),
        ]
    return sa.union_all(*parts).cte("lines")


def _alone(dialect_name: str, lines: sa.CTE, alone: sa.ColumnElement[bool], label: str | None) -> sa.Select[Any]:
    """Return the sums over attempts that had their node for themselves."""
    first_day, last_day = lines.c.from_ms // MS_PER_DAY, lines.c.to_ms // MS_PER_DAY
    within = sa.select(first_day.label("day"), lines.c.job_id, lines.c.amount_micro_usd.label("amount")).where(
        alone, first_day == last_day
    )
    day = row_list(dialect_name, {"begins_ms": sa.BigInteger(), "ends_ms": sa.BigInteger()})
    before = partial(_before, lines)
    across = (
        sa.select(day.c.begins_ms // MS_PER_DAY, lines.c.job_id, before(day.c.ends_ms) - before(day.c.begins_ms))
        .select_from(lines.join(day, (lines.c.from_ms < day.c.ends_ms) & (lines.c.to_ms > day.c.begins_ms)))
        .where(alone, first_day != last_day)
    )
    parts = sa.union_all(within, across).subquery("parts")
    value = sa.null() if label is None else jobs.c.labels[label].as_string()
    valued = sa.select(parts.c.day, value.label("value"), parts.c.amount).join(jobs, jobs.c.id == parts.c.job_id)
    named = valued.subquery("valued")
    return (
        sa.select(named.c.day, named.c.value, sa.func.sum(named.c.amount).label("amount"))
        .group_by(named.c.day, named.c.value)
        .order_by(named.c.day.desc())
    )


def _before(lines: sa.CTE, instant_ms: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    """Return an interval's cost from before this instant."""
    so_far = amount_micro_usd(lines.c.price_micro_usd_per_hour, instant_ms - lines.c.from_ms)
    return sa.case(
        (lines.c.from_ms >= instant_ms, 0), (lines.c.to_ms <= instant_ms, lines.c.amount_micro_usd), else_=so_far
    )


def _add_shared(
    connection: sa.Connection,
    costs: Counter[tuple[int, str | None]],
    together: sa.CompoundSelect[Any],
    days: range,
) -> None:
    """Add what attempts cost that shared their nodes, each by its share."""
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
