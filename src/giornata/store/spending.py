"""What jobs and projects have spent, and what they have set aside."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from giornata.domain.budget import Spent
from giornata.protocol.specs import CANARY_KIND
from giornata.store.attempts import LIVE
from giornata.store.beside import BESIDE, EXISTS_BESIDE, OTHER
from giornata.store.bills import shares_from
from giornata.store.ledger import amount_micro_usd
from giornata.store.schema import attempts, jobs, ledger

# A constant in the text, because a planner cannot prove that a parameter matches a partial index.
RESERVED = sa.literal_column(
    "jobs.state IN ('queued', 'running', 'paused') AND jobs.reserved_micro_usd > 0", sa.Boolean
)
# Below what SQLite takes as parameters of one statement.
AT_ONCE = 500
# Before every instant: no month is asked about.
EVER_MS = -(2**62)


class Spending:
    """See `giornata.control.ports.money_store.Spending`."""

    def __init__(self, connection: sa.Connection, dialect_name: str) -> None:
        self._connection = connection
        self._dialect_name = dialect_name

    def of_jobs(self, job_ids: Sequence[str]) -> Mapping[str, int]:
        spent = dict.fromkeys(job_ids, 0)
        for some in _slices(job_ids):
            for job_id, amount in self._by_job(ledger.c.job_id.in_(some), month_ms=EVER_MS):
                spent[job_id] += amount.total_micro_usd
        return spent

    def settled(self, project_id: str | None, *, from_ms: int, before_ms: int, month_ms: int) -> Spent:
        ended = (attempts.c.ended_at_ms >= from_ms) & (attempts.c.ended_at_ms < before_ms)
        return self._of_project(project_id, [ended], month_ms=month_ms)

    def unsettled(self, project_id: str | None, *, since_ms: int, month_ms: int) -> Spent:
        # One after the other: each has an index of its own.
        return self._of_project(project_id, [attempts.c.ended_at_ms >= since_ms, LIVE], month_ms=month_ms)

    def reserved(self, project_id: str, *, but: str | None = None) -> int:
        mine = RESERVED & (jobs.c.project_id == project_id)
        if but is not None:
            mine &= jobs.c.id != but
        whole = self._connection.scalar(sa.select(sa.func.sum(jobs.c.reserved_micro_usd)).where(mine)) or 0
        begun = sa.select(jobs.c.id, jobs.c.reserved_micro_usd).where(mine, jobs.c.attempt_count > 0)
        aside = {row.id: row.reserved_micro_usd for row in self._connection.execute(begun)}
        spent = self.of_jobs(list(aside))
        used: int = sum(min(spent[job_id], reserved) for job_id, reserved in aside.items())
        return int(whole) - used

    def _of_project(
        self, project_id: str | None, conditions: Sequence[sa.ColumnElement[bool]], *, month_ms: int
    ) -> Spent:
        canary = sa.exists().where(jobs.c.id == ledger.c.job_id, jobs.c.kind == CANARY_KIND)
        # Canaries hang on the operator's project, and are on nobody's budget.
        mine = sa.true() if project_id is None else (ledger.c.project_id == project_id) & ~canary
        found = (self._by_job(mine & condition, month_ms=month_ms) for condition in conditions)
        return sum((amount for rows in found for _, amount in rows), Spent())

    def _by_job(self, condition: sa.ColumnElement[bool], *, month_ms: int) -> Iterable[tuple[str, Spent]]:
        """(job, micro-dollars) of the attempts that it holds for; a job may come more than once."""
        joined = ledger.join(attempts, attempts.c.id == ledger.c.attempt_id)
        alone: sa.Select[Any] = (
            sa.select(ledger.c.job_id, sa.func.sum(ledger.c.amount_micro_usd), sa.func.sum(_before(month_ms)))
            .select_from(joined)
            .where(condition, ~EXISTS_BESIDE)
            .group_by(ledger.c.job_id)
        )
        for job_id, amount, before in self._connection.execute(alone):
            yield job_id, Spent(total_micro_usd=int(amount), month_micro_usd=int(amount) - int(before))
        beside: sa.Select[Any] = (
            sa.select(ledger.c.job_id, ledger.c.attempt_id, OTHER.c.id.label("other_id"))
            .select_from(joined.join(OTHER, BESIDE))
            .where(condition)
            .distinct()
        )
        yield from self._shared(self._connection.execute(beside).all(), month_ms=month_ms)

    def _shared(self, rows: Sequence[Any], *, month_ms: int) -> Iterable[tuple[str, Spent]]:
        job_of = {row.attempt_id: row.job_id for row in rows}
        pairs: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for row in rows:
            pairs[row.attempt_id].append((row.attempt_id, row.other_id))
        for some in _slices(list(pairs)):
            these = [pair for attempt_id in some for pair in pairs[attempt_id]]
            found = shares_from(self._connection, these, from_ms=month_ms)
            yield from ((job_of[attempt_id], amount) for attempt_id, amount in found.items())


def _before(month_ms: int) -> sa.ColumnElement[int]:
    """What an interval cost before the month began. The months of an interval add up to its amount, exactly."""
    begins = sa.literal(month_ms, sa.BigInteger)
    so_far = amount_micro_usd(ledger.c.price_micro_usd_per_hour, begins - ledger.c.from_ms)
    return sa.case(
        (ledger.c.from_ms >= begins, 0), (ledger.c.to_ms <= begins, ledger.c.amount_micro_usd), else_=so_far
    )


def _slices(ids: Sequence[str]) -> Iterable[Sequence[str]]:
    return (ids[first : first + AT_ONCE] for first in range(0, len(ids), AT_ONCE))
