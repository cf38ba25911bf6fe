"""Queries for money that jobs and projects spent and set aside, and for queued jobs that wait for money."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.user_queries import money_store
from giornata.control.ports.user_queries.money_store import PausedJob, PictureTime
from giornata.domain.billing.budget import Payer, ProjectLimits, Spent
from giornata.domain.generation.picture import PictureState
from giornata.domain.jobs.job import JobEvent, JobState, next_state
from giornata.protocol.specs import CANARY_KIND
from giornata.store.database.rows import Queries
from giornata.store.jobs.attempts import LIVE
from giornata.store.jobs.claiming import QUEUED
from giornata.store.money.ledger import (
    ALONE,
    ENDED_MS,
    EVER_MS,
    amount_micro_usd,
    ever_shared,
    join_beside,
    node_ms_of,
    shares_from,
)
from giornata.store.schema import attempts, jobs, ledger, pictures, projects

# A constant in the text, because a planner cannot prove that a parameter matches a partial index.
RESERVED = sa.literal_column(
    "jobs.state IN ('queued', 'running', 'paused') AND jobs.reserved_micro_usd > 0", sa.Boolean
)
# Below what SQLite takes as parameters of one statement.
AT_ONCE = 500
PAUSED = sa.literal_column("jobs.state = 'paused'", sa.Boolean)
# Made once: building a statement costs more than running it.
_LIMITS = (projects.c.budget_micro_usd, projects.c.monthly_budget_micro_usd)
_LIMITED = sa.select(projects.c.id, *_LIMITS).where(sa.or_(*(limit.is_not(None) for limit in _LIMITS)))
_FOR_PROJECT = jobs.c.paused_by.in_((Payer.PROJECT, Payer.MONTH))
_DRAWN_BY_LEASE = (
    sa.select(pictures.c.lease, sa.func.count().label("drawn"))
    .where(pictures.c.state == PictureState.SUCCEEDED)
    .group_by(pictures.c.lease)
)
_DRAWN_OF_ORDER = _DRAWN_BY_LEASE.where(pictures.c.order_id == sa.bindparam("wanted"), pictures.c.lease.is_not(None))
_DRAWN_IN_LEASES = _DRAWN_BY_LEASE.where(pictures.c.lease.in_(sa.bindparam("wanted", expanding=True)))
_WAITING = sa.select(jobs.c.project_id).where(PAUSED, _FOR_PROJECT).distinct()
_COLUMNS_OF = {
    Payer.PROJECT: ("budget_micro_usd", "budget_warned_at_ms"),
    Payer.MONTH: ("monthly_budget_micro_usd", "monthly_budget_warned_at_ms"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempts:
    """Conditions on `_JOINED` of attempts that were alone on their nodes, and of those that may have shared them."""

    alone: sa.ColumnElement[bool]
    shared: sa.ColumnElement[bool]


class Spending(Queries, money_store.Spending):
    def of_jobs(self, job_ids: Sequence[str]) -> Mapping[str, int]:
        spent = dict.fromkeys(job_ids, 0)
        for some in _slices(job_ids):
            for job_id, amount in self._spent([_each_looked_up(ledger.c.job_id.in_(some))], month_ms=EVER_MS):
                spent[job_id] += amount.total_micro_usd
        return spent

    def picture_times(self, order_id: str) -> list[PictureTime]:
        ours = {row.lease: row.drawn for row in self._connection.execute(_DRAWN_OF_ORDER, {"wanted": order_id})}
        found: list[PictureTime] = []
        for some in _slices(list(ours)):
            node_ms = node_ms_of(self._connection, some)  # an imported order has no leases here
            for row in self._connection.execute(_DRAWN_IN_LEASES, {"wanted": list(node_ms)}):
                found.append(PictureTime(node_ms=node_ms[row.lease] / row.drawn, pictures=ours[row.lease]))
        return found

    def settled(self, project_id: str | None, *, from_ms: int, before_ms: int, month_ms: int) -> Spent:
        ended = (attempts.c.ended_at_ms >= from_ms) & (attempts.c.ended_at_ms < before_ms)
        return self._of_project([_swept(ended & _paid_by(project_id))], month_ms=month_ms)

    def unsettled(self, project_id: str | None, *, since_ms: int, month_ms: int) -> Spent:
        ended, mine = attempts.c.ended_at_ms >= since_ms, _paid_by(project_id)
        # Heartbeats ask for one project. All projects together may have ended many attempts on each node.
        lately = _swept(ended) if project_id is None else _each_looked_up(ended & mine)
        return self._of_project([lately, _each_looked_up(LIVE & mine)], month_ms=month_ms)

    def reserved(self, project_id: str, *, but: str | None = None) -> int:
        mine = RESERVED & (jobs.c.project_id == project_id)
        if but is not None:
            mine &= jobs.c.id != but
        # Those that have not begun make one row together.
        begun = sa.case((jobs.c.attempt_count > 0, jobs.c.id))
        query = sa.select(begun.label("id"), sa.func.sum(jobs.c.reserved_micro_usd).label("aside")).where(mine)
        aside = {row.id: int(row.aside) for row in self._connection.execute(query.group_by(sa.text("1")))}
        spent = self.of_jobs([job_id for job_id in aside if job_id is not None])
        return sum(reserved - min(spent.get(job_id, 0), reserved) for job_id, reserved in aside.items())

    def _of_project(self, parts: Sequence[_Attempts], *, month_ms: int) -> Spent:
        # One row of sums for each part: a large fleet has thousands of live attempts.
        found = self._spent(parts, month_ms=month_ms, job_id=sa.literal(""))
        return sum((amount for _, amount in found), Spent())

    def _spent(
        self, parts: Sequence[_Attempts], *, month_ms: int, job_id: sa.ColumnElement[Any] = ledger.c.job_id
    ) -> Iterable[tuple[str, Spent]]:
        """Yield (job, spending) of the attempts of the parts, which have none in common; a job may come more than
        once.

        A constant as `job_id` adds those together that were alone.
        """
        # A part of the statement for each: each has an index of its own.
        alone = [_alone(each.alone, month_ms, job_id) for each in parts]
        for job, amount, before in self._connection.execute(_together(alone)):
            yield job, Spent(total_micro_usd=int(amount), month_micro_usd=int(amount) - int(before))
        pairs = [statement for each in parts for statement in _beside(each.shared)]
        yield from self._shared(self._connection.execute(_together(pairs)).all(), month_ms=month_ms)

    def _shared(self, rows: Sequence[Any], *, month_ms: int) -> Iterable[tuple[str, Spent]]:
        asked = {(row.attempt_id, row.job_id) for row in rows}
        pairs: dict[str, set[tuple[str, str]]] = defaultdict(set)  # a lease of pictures comes once for each order
        for row in rows:
            pairs[row.attempt_id].add((row.attempt_id, row.other_id))
        for some in _slices(list(pairs)):
            these = [pair for attempt_id in some for pair in pairs[attempt_id]]
            found = shares_from(self._connection, these, from_ms=month_ms)
            yield from ((of_job[1], amount) for of_job, amount in found.items() if of_job in asked)


_JOINED = ledger.join(attempts, attempts.c.id == ledger.c.attempt_id)


def _each_looked_up(condition: sa.ColumnElement[bool]) -> _Attempts:
    """Return these attempts. Of each, those on its node are looked up: for attempts that live, or are few."""
    return _Attempts(alone=condition & ALONE, shared=condition)


def _swept(ended: sa.ColumnElement[bool]) -> _Attempts:
    """Return these attempts, which have ended. Those of each node are read once, in their order, however many."""
    lived = sa.select(attempts.c.node_id, attempts.c.started_at_ms, ENDED_MS.label("ended_ms"))
    shared = attempts.c.id.in_(ever_shared(lived.select_from(_JOINED).where(ended).cte("lived")))
    return _Attempts(alone=ended & ~shared, shared=ended & shared)


def _paid_by(project_id: str | None) -> sa.ColumnElement[bool]:
    """Return the condition of what is on this project's budget; all of the ledger for None.

    Canaries and audits are paid by the operator's project, and are on nobody's budget.
    """
    if project_id is None:
        return sa.true()
    own = (jobs.c.kind == CANARY_KIND) | jobs.c.billed_to.is_not(None)
    return (ledger.c.project_id == project_id) & ~sa.exists().where(jobs.c.id == ledger.c.job_id, own)


def _together(parts: Sequence[sa.Select[Any]]) -> sa.Executable:
    return parts[0] if len(parts) == 1 else sa.union_all(*parts)


def _alone(condition: sa.ColumnElement[bool], month_ms: int, job_id: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """Return the sums by job over attempts that had their node for themselves."""
    return (
        sa.select(job_id, sa.func.sum(ledger.c.amount_micro_usd), sa.func.sum(_before(month_ms)))
        .select_from(_JOINED)
        .where(condition)
        .group_by(sa.text("1"))
    )


def _beside(condition: sa.ColumnElement[bool]) -> Sequence[sa.Select[Any]]:
    """Return the jobs, attempts and those that were beside them on their node."""
    return join_beside(
        lambda joined, other_id: (
            sa.select(ledger.c.job_id, ledger.c.attempt_id, other_id)
            .select_from(joined.join(ledger, ledger.c.attempt_id == attempts.c.id))
            .where(condition)
            .distinct()
        )
    )


def _before(month_ms: int) -> sa.ColumnElement[int]:
    """Return an interval's cost from before the month. The months of an interval add up to its amount, exactly."""
    begins = sa.literal(month_ms, sa.BigInteger)
    so_far = amount_micro_usd(ledger.c.price_micro_usd_per_hour, begins - ledger.c.from_ms)
    return sa.case(
        (ledger.c.from_ms >= begins, 0), (ledger.c.to_ms <= begins, ledger.c.amount_micro_usd), else_=so_far
    )


def _slices(ids: Sequence[str]) -> Iterable[Sequence[str]]:
    return (ids[first : first + AT_ONCE] for first in range(0, len(ids), AT_ONCE))


class Pausing(Queries, money_store.Pausing):
    def limited_projects(self) -> list[tuple[str, ProjectLimits]]:
        return [(row.id, _limits(row)) for row in self._connection.execute(_LIMITED)]

    def projects_waiting(self) -> list[str]:
        return list(self._connection.scalars(_WAITING))

    def pause_queued(self, project_id: str, *, payer: Payer, limit: int) -> list[PausedJob]:
        # One that lapsed may come back: its job is looked at when it does.
        may_return = sa.exists().where(attempts.c.job_id == jobs.c.id, attempts.c.ended_at_ms.is_(None))
        users = (jobs.c.kind != CANARY_KIND) & jobs.c.billed_to.is_(None)
        these = sa.select(jobs.c.id).where(QUEUED, jobs.c.project_id == project_id, users, ~may_return)
        return self._move(these, JobState.QUEUED, JobEvent.PAUSE, payer, limit=limit)

    def resume_paused(self, project_id: str, *, limit: int) -> list[PausedJob]:
        these = sa.select(jobs.c.id).where(PAUSED, jobs.c.project_id == project_id, _FOR_PROJECT)
        return self._move(these, JobState.PAUSED, JobEvent.RESUME, None, limit=limit)

    def warned(self, project_id: str, *, at_ms: int) -> bool:
        unwarned = (projects.c.id == project_id) & projects.c.budget_warned_at_ms.is_(None)
        changed = self._connection.execute(sa.update(projects).where(unwarned).values(budget_warned_at_ms=at_ms))
        return changed.rowcount == 1

    def warned_of_month(self, project_id: str, *, month_ms: int, at_ms: int) -> bool:
        warned = projects.c.monthly_budget_warned_at_ms
        unwarned = (projects.c.id == project_id) & (warned.is_(None) | (warned < month_ms))
        values = {"monthly_budget_warned_at_ms": at_ms}
        changed = self._connection.execute(sa.update(projects).where(unwarned).values(values))
        return changed.rowcount == 1

    def lock_limits(self, project_id: str) -> ProjectLimits:
        # Not FOR UPDATE: whoever inserts a row that refers to the project would wait.
        query = sa.select(*_LIMITS).where(projects.c.id == project_id).with_for_update(key_share=True)
        found = self._connection.execute(query).first()
        return ProjectLimits() if found is None else _limits(found)

    def set_budgets(self, project_id: str, budgets: Mapping[Payer, int | None]) -> bool:
        values: dict[str, int | None] = {}
        for payer, micro_usd in budgets.items():
            limit, warned = _COLUMNS_OF[payer]
            values |= {limit: micro_usd, warned: None}
        changed = self._connection.execute(sa.update(projects).where(projects.c.id == project_id).values(values))
        return changed.rowcount == 1

    def _move(
        self,
        these: sa.Select[Any],
        source: JobState,
        event: JobEvent,
        paused_by: Payer | None,
        *,
        limit: int,
        # Rows that another transaction holds are left for the next turn: nothing waits here.
    ) -> list[PausedJob]:
        chosen = these.order_by(jobs.c.id).limit(limit).with_for_update(skip_locked=True)
        statement = (
            sa.update(jobs)
            .where(jobs.c.id.in_(chosen.scalar_subquery()), jobs.c.state == source)
            .values(
                state=next_state(source, event),
                paused_by=paused_by,
                phase="",
                interrupted=jobs.c.attempt_count > 0,
            )
            .returning(jobs.c.id, jobs.c.kind, jobs.c.committed_step)
        )
        found = self._connection.execute(statement)
        return [PausedJob(job_id=row.id, kind=row.kind, committed_step=row.committed_step) for row in found]


def _limits(row: Any) -> ProjectLimits:
    return ProjectLimits(total_micro_usd=row.budget_micro_usd, monthly_micro_usd=row.monthly_budget_micro_usd)
