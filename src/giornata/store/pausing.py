"""Queued jobs that wait for money, and back."""

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.money_store import Parked
from giornata.domain.budget import Payer, ProjectLimits
from giornata.domain.job import JobEvent, JobState, next_state
from giornata.protocol.specs import CANARY_KIND
from giornata.store.claiming import QUEUED
from giornata.store.schema import attempts, jobs, projects

PAUSED = sa.literal_column("jobs.state = 'paused'", sa.Boolean)
# Made once: building a statement costs more than running it.
_LIMITS = (projects.c.budget_micro_usd, projects.c.monthly_budget_micro_usd)
_LIMITED = sa.select(projects.c.id, *_LIMITS).where(sa.or_(*(limit.is_not(None) for limit in _LIMITS)))
_FOR_PROJECT = jobs.c.paused_by.in_((Payer.PROJECT, Payer.MONTH))
_WAITING = sa.select(jobs.c.project_id).where(PAUSED, _FOR_PROJECT).distinct()
_COLUMNS_OF = {
    Payer.PROJECT: ("budget_micro_usd", "budget_warned_at_ms"),
    Payer.MONTH: ("monthly_budget_micro_usd", "monthly_budget_warned_at_ms"),
}


class Pausing:
    """See `giornata.control.ports.money_store.Pausing`."""

    def __init__(self, connection: sa.Connection, _dialect_name: str) -> None:
        self._connection = connection

    def limited_projects(self) -> list[tuple[str, ProjectLimits]]:
        return [(row.id, _limits(row)) for row in self._connection.execute(_LIMITED)]

    def projects_waiting(self) -> list[str]:
        return list(self._connection.scalars(_WAITING))

    def pause_queued(self, project_id: str, *, payer: Payer, limit: int) -> list[Parked]:
        # One that lapsed may come back: its job is looked at when it does.
        may_return = sa.exists().where(attempts.c.job_id == jobs.c.id, attempts.c.ended_at_ms.is_(None))
        users = jobs.c.kind != CANARY_KIND
        these = sa.select(jobs.c.id).where(QUEUED, jobs.c.project_id == project_id, users, ~may_return)
        return self._move(these, JobState.QUEUED, JobEvent.PAUSE, payer, limit=limit)

    def resume_paused(self, project_id: str, *, limit: int) -> list[Parked]:
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
        self, these: sa.Select[Any], source: JobState, event: JobEvent, paused_by: Payer | None, *, limit: int
    ) -> list[Parked]:
        # Those that somebody holds are left for the next turn: nobody waits for anybody here.
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
            .returning(jobs.c.id, jobs.c.committed_step)
        )
        return [
            Parked(job_id=row.id, committed_step=row.committed_step) for row in self._connection.execute(statement)
        ]


def _limits(row: Any) -> ProjectLimits:
    return ProjectLimits(total_micro_usd=row.budget_micro_usd, monthly_micro_usd=row.monthly_budget_micro_usd)
