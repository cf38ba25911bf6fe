"""Read and write what attempts cost. The ledger has one row for each interval in which an attempt is alive.

The rows do not refer to each other, so that a heartbeat of one attempt never waits for another attempt. What an
attempt pays of its node's price is computed when it is read: all of it alone, a share beside others (`AttemptBill`).

Attempts that lived on one node at one time are found by their node and their times; no row says so. The index
`ix_attempts_node` leads to the attempts of a node that live or ended after a given instant.
"""

import functools
import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import starmap
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.node_queries import work_store
from giornata.control.ports.node_queries.work_rows import AttemptRow, JobRow
from giornata.domain.billing.budget import Spent
from giornata.domain.billing.costs import Interval, apportion, shared_cost_micro_usd
from giornata.domain.billing.money import MS_PER_HOUR
from giornata.store.database.rows import Queries, among
from giornata.store.schema import attempts, jobs, ledger

# One that lives has no end yet.
FOREVER_MS = 2**62
# Before every instant: no month is asked about.
EVER_MS = -(2**62)
OTHER = attempts.alias("other")
ENDED_MS = sa.func.coalesce(attempts.c.ended_at_ms, sa.literal_column(str(FOREVER_MS), sa.BigInteger))
_ON_NODE = sa.and_(
    OTHER.c.node_id == attempts.c.node_id, OTHER.c.id != attempts.c.id, OTHER.c.started_at_ms < ENDED_MS
)
# `OTHER` was on the node of a row of `attempts` in the time of that row. Both were there for at least a millisecond.
# Either the other lives, or it ended later: with OR in one condition PostgreSQL reads all attempts of the node.
BESIDE_EACH = (
    _ON_NODE & OTHER.c.ended_at_ms.is_(None),
    _ON_NODE & (OTHER.c.ended_at_ms > attempts.c.started_at_ms),
)
ALONE = sa.and_(*(~sa.exists(sa.select(OTHER.c.id).where(each).correlate(attempts)) for each in BESIDE_EACH))
_COUNTS = (sa.select(sa.func.count()).select_from(OTHER).where(each).correlate(attempts) for each in BESIDE_EACH)
COUNT_BESIDE = functools.reduce(operator.add, (each.scalar_subquery() for each in _COUNTS))


def join_beside(
    rows: Callable[[sa.Join, sa.ColumnElement[str]], sa.Select[Any]],
) -> Sequence[sa.Select[Any]]:
    """Return the parts of a union of rows of attempts joined with each attempt beside, whose id `rows` gets."""
    return [rows(attempts.join(OTHER, each), OTHER.c.id.label("other_id")) for each in BESIDE_EACH]


# (attempt of one of the jobs, attempt that was on its node at one time). Made once, as it costs more than running it.
BESIDE_ATTEMPTS_OF_JOBS = sa.union_all(
    *join_beside(
        lambda joined, other_id: (
            sa.select(attempts.c.id, other_id)
            .select_from(joined.join(jobs, jobs.c.id == attempts.c.job_id))
            .where(
                attempts.c.job_id.in_(sa.bindparam("jobs", expanding=True)),
                jobs.c.project_id == sa.bindparam("project"),
            )
        )
    )
)
BESIDE_ATTEMPTS = sa.union_all(
    *join_beside(
        lambda joined, other_id: (
            sa.select(attempts.c.id, other_id)
            .select_from(joined)
            .where(attempts.c.id.in_(sa.bindparam("wanted", expanding=True)))
        )
    )
)
# Made once: building a statement costs more than running it.
_LAST = sa.select(sa.func.max(ledger.c.seq)).where(ledger.c.attempt_id == sa.bindparam("wanted")).scalar_subquery()
_OPEN = sa.insert(ledger).values(
    {
        **{column.name: sa.bindparam(column.name) for column in ledger.c},
        "seq": sa.func.coalesce(_LAST, -1) + 1,
        "amount_micro_usd": 0,
    }
)


def amount_micro_usd(price: sa.ColumnElement[int], billed_ms: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    """Return `money.cost_micro_usd` in SQL: a heartbeat need not read the row first. A test compares the two.

    Whole hours are apart, so that no product leaves 64 bits.
    """
    rest_ms = billed_ms % MS_PER_HOUR
    return price * (billed_ms // MS_PER_HOUR) + (price * rest_ms + MS_PER_HOUR // 2) // MS_PER_HOUR


class Ledger(Queries, work_store.Ledger):
    def open_each(self, begun: Sequence[tuple[JobRow, AttemptRow]], *, at_ms: int) -> None:
        if not begun:
            return
        rows = [
            {
                "wanted": attempt.id,
                "attempt_id": attempt.id,
                "project_id": job.billed_to or job.project_id,
                "job_id": job.id,
                "from_ms": at_ms,
                "to_ms": at_ms,
                "price_micro_usd_per_hour": attempt.price_micro_usd_per_hour,
            }
            for job, attempt in begun
        ]
        self._connection.execute(_OPEN, rows)

    def extend_each(self, attempt_ids: Sequence[str], *, to_ms: int) -> None:
        if not attempt_ids:
            return
        values = {"wanted": list(attempt_ids), "until": to_ms}
        self._connection.execute(_extend(self._dialect_name), values)


@functools.cache
def _extend(dialect_name: str) -> sa.Update:
    later = ledger.alias("later")
    latest = ~sa.exists().where(later.c.attempt_id == ledger.c.attempt_id, later.c.seq > ledger.c.seq)
    until = sa.bindparam("until", type_=sa.BigInteger)
    billed_ms = until - ledger.c.from_ms
    return (
        sa.update(ledger)
        .where(among(dialect_name, ledger.c.attempt_id, "wanted"), latest, ledger.c.to_ms < until)
        .values(to_ms=until, amount_micro_usd=amount_micro_usd(ledger.c.price_micro_usd_per_hour, billed_ms))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptBill:
    """An attempt's intervals in order, and what its node costs an hour.

    `prices` are the parts of that price by job: of an attempt at a job all of it, of a lease of pictures the parts of
    its orders.
    """

    intervals: tuple[Interval, ...]
    prices: Mapping[str, int]
    runs: bool

    @property
    def price_per_hour(self) -> int:
        """The price of an hour of the node, in micro-dollars."""
        return sum(self.prices.values())

    @property
    def life(self) -> tuple[Interval, ...]:
        """The attempt's intervals as others see them.

        A running attempt counts as alive for ever, so that the bill of another that ends before it does not change.
        """
        *before, last = self.intervals
        return (*before, Interval(from_ms=last.from_ms, to_ms=FOREVER_MS)) if self.runs else self.intervals

    def amount_micro_usd(self, beside: Sequence["AttemptBill"], *, until_ms: int = FOREVER_MS) -> int:
        """Return the attempt's share, in micro-dollars, of what is billed before `until_ms`."""
        lives = [bill.life for bill in beside]
        return sum(
            shared_cost_micro_usd(
                Interval(from_ms=interval.from_ms, to_ms=min(interval.to_ms, until_ms)),
                lives,
                price_per_hour=self.price_per_hour,
            )
            for interval in self.intervals
            if interval.from_ms < until_ms
        )

    def node_ms(self, beside: Sequence["AttemptBill"]) -> int:
        """Return the attempt's share, in milliseconds, of its node's time."""
        lives = [bill.life for bill in beside]
        return sum(shared_cost_micro_usd(each, lives, price_per_hour=MS_PER_HOUR) for each in self.intervals)

    def spent(self, beside: Sequence["AttemptBill"], *, from_ms: int) -> Mapping[str, Spent]:
        """Return the attempt's share by job, in all and from this instant on."""
        whole, before = self.by_job(beside), self.by_job(beside, until_ms=from_ms)
        return {
            job_id: Spent(total_micro_usd=amount, month_micro_usd=amount - before[job_id])
            for job_id, amount in whole.items()
        }

    def by_job(self, beside: Sequence["AttemptBill"], *, until_ms: int = FOREVER_MS) -> Mapping[str, int]:
        """Return the attempt's share by job, in micro-dollars, of what is billed before `until_ms`."""
        amount_micro_usd = self.amount_micro_usd(beside, until_ms=until_ms)
        parts = apportion(amount_micro_usd, [Fraction(price) for price in self.prices.values()])
        return dict(zip(self.prices, parts, strict=True))


def ever_shared(lived: sa.CTE) -> sa.Select[Any]:
    """Return the ids of attempts that shared their node, at least those among the attempts of `lived`.

    `lived` has node_id, started_at_ms and ended_ms of attempts. The attempts of each node, from the first of them to
    the last, are read once, in the order of their starts. One shared its node if another that began before it ends
    after its start, or if the next one begins before its end. One that lived for no time may count as another: no
    share depends on it.
    """
    # Of each node by itself: one attempt that took a month would make others' nodes be read for a month.
    spans = (
        sa.select(
            lived.c.node_id,
            sa.func.min(lived.c.started_at_ms).label("first_ms"),
            sa.func.max(lived.c.ended_ms).label("last_ms"),
        )
        .group_by(lived.c.node_id)
        .subquery("spans")
    )
    those = (
        sa.select(attempts.c.id, attempts.c.node_id, attempts.c.started_at_ms, ENDED_MS.label("ended_ms"))
        .join(spans, spans.c.node_id == attempts.c.node_id)
        .where(attempts.c.started_at_ms < spans.c.last_ms)
    )
    # Two parts, as in `BESIDE_EACH`.
    near = sa.union_all(
        those.where(attempts.c.ended_at_ms.is_(None)), those.where(attempts.c.ended_at_ms > spans.c.first_ms)
    ).subquery("near")
    node, order = near.c.node_id, (near.c.started_at_ms, near.c.id)
    until_ms = sa.func.max(near.c.ended_ms).over(partition_by=node, order_by=order, rows=(None, -1))
    next_ms = sa.func.lead(near.c.started_at_ms).over(partition_by=node, order_by=order)
    # A table of its own, so that it is made once however often a statement names it.
    swept = sa.select(
        near.c.id, ((until_ms > near.c.started_at_ms) | (next_ms < near.c.ended_ms)).label("shared")
    ).cte("swept")
    return sa.select(swept.c.id).where(swept.c.shared)


def shared_amounts(connection: sa.Connection, job_ids: Sequence[str], *, project_id: str) -> Mapping[str, int]:
    """Return the costs, in micro-dollars by id, of those attempts of the jobs that ever shared their node."""
    found = connection.execute(BESIDE_ATTEMPTS_OF_JOBS, {"jobs": job_ids, "project": project_id})
    bills = bills_beside(connection, ((one, two) for one, two in found))
    return {of: bill.amount_micro_usd(beside) for of, bill, beside in bills}


def shares_from(
    connection: sa.Connection, pairs: Iterable[tuple[str, str]], *, from_ms: int
) -> Mapping[tuple[str, str], Spent]:
    """Return the costs of attempts that shared their nodes, by attempt and job, in all and from this instant on.

    A pair is an attempt and another that was beside it, and all of an attempt's pairs are here.
    """
    return {
        (of, job_id): spent
        for of, bill, beside in bills_beside(connection, pairs)
        for job_id, spent in bill.spent(beside, from_ms=from_ms).items()
    }


def node_ms_of(connection: sa.Connection, attempt_ids: Sequence[str]) -> Mapping[str, int]:
    """Return the milliseconds of a node's time by attempt: all of its life alone, equal shares beside others."""
    bills = _bills(connection, attempt_ids)
    found = connection.execute(BESIDE_ATTEMPTS, {"wanted": attempt_ids})
    shared = {of: bill.node_ms(beside) for of, bill, beside in bills_beside(connection, ((a, b) for a, b in found))}
    return {of: bill.node_ms(()) for of, bill in bills.items()} | shared


def bills_beside(
    connection: sa.Connection, pairs: Iterable[tuple[str, str]]
) -> Iterable[tuple[str, AttemptBill, list[AttemptBill]]]:
    """Return each attempt with its bill and the bills of the attempts beside it. A pair is one of each."""
    beside: dict[str, list[str]] = defaultdict(list)
    for attempt_id, other_id in pairs:
        beside[attempt_id].append(other_id)
    if not beside:
        return []
    bills = _bills(connection, sorted({*beside, *(each for them in beside.values() for each in them)}))
    return [(of, bills[of], [bills[each] for each in them]) for of, them in beside.items()]


def _bills(connection: sa.Connection, attempt_ids: Sequence[str]) -> Mapping[str, AttemptBill]:
    runs = attempts.c.ended_at_ms.is_(None) & ~attempts.c.lapsed
    query = (
        sa.select(*ledger.c, runs.label("runs"), attempts.c.pictures)
        .join(attempts, attempts.c.id == ledger.c.attempt_id)
        .where(ledger.c.attempt_id.in_(attempt_ids))
        .order_by(ledger.c.attempt_id, ledger.c.seq)
    )
    rows: dict[str, list[Any]] = defaultdict(list)
    for row in connection.execute(query):
        rows[row.attempt_id].append(row)
    return dict(starmap(_bill, rows.items()))


def _bill(attempt_id: str, rows: Sequence[Any]) -> tuple[str, AttemptBill]:
    # A lease of pictures has one interval, with a row for each order.
    lease, last = bool(rows[0].pictures), rows[-1]
    intervals = tuple(Interval(from_ms=row.from_ms, to_ms=row.to_ms) for row in (rows[:1] if lease else rows))
    prices = {row.job_id: row.price_micro_usd_per_hour for row in (rows if lease else rows[-1:])}
    return attempt_id, AttemptBill(intervals=intervals, prices=prices, runs=bool(last.runs))
