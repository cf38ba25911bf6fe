"""Queued jobs that wait for money, and back."""

from typing import Any

import sqlalchemy as sa

from giornata.control.ports.money_store import Parked
from giornata.domain.budget import Payer
from giornata.domain.job import JobEvent, JobState, next_state
from giornata.protocol.specs import CANARY_KIND
from giornata.store.claiming import QUEUED
from giornata.store.schema import attempts, jobs, projects

PAUSED = sa.literal_column("jobs.state = 'paused'", sa.Boolean)
# Made once: building a statement costs more than running it.
_LIMITED = sa.select(projects.c.id, projects.c.budget_micro_usd).where(projects.c.budget_micro_usd.is_not(None))
_WAITING = sa.select(jobs.c.project_id).where(PAUSED, jobs.c.paused_by == Payer.PROJECT).distinct()


class Pausing:
    """See `giornata.control.ports.money_store.Pausing`."""

    def __init__(self, connection: sa.Connection, _dialect_name: str) -> None:
        self._connection = connection

    def limited_projects(self) -> list[tuple[str, int]]:
        return [(row.id, row.budget_micro_usd) for row in self._connection.execute(_LIMITED)]

    def projects_waiting(self) -> list[str]:
        return list(self._connection.scalars(_WAITING))

    def pause_queued(self, project_id: str, *, limit: int) -> list[Parked]:
        # One that lapsed may come back: its job is looked at when it does.
        may_return = sa.exists().where(attempts.c.job_id == jobs.c.id, attempts.c.ended_at_ms.is_(None))
        users = jobs.c.kind != CANARY_KIND
        these = sa.select(jobs.c.id).where(QUEUED, jobs.c.project_id == project_id, users, ~may_return)
        return self._move(these, JobState.QUEUED, JobEvent.PAUSE, Payer.PROJECT, limit=limit)

    def resume_paused(self, project_id: str, *, limit: int) -> list[Parked]:
        these = sa.select(jobs.c.id).where(PAUSED, jobs.c.project_id == project_id, jobs.c.paused_by == Payer.PROJECT)
        return self._move(these, JobState.PAUSED, JobEvent.RESUME, None, limit=limit)

    def warned(self, project_id: str, *, at_ms: int) -> bool:
        unwarned = (projects.c.id == project_id) & projects.c.budget_warned_at_ms.is_(None)
        changed = self._connection.execute(sa.update(projects).where(unwarned).values(budget_warned_at_ms=at_ms))
        return changed.rowcount == 1

    def lock_budget(self, project_id: str) -> int | None:
        # Not FOR UPDATE: whoever inserts a row that refers to the project would wait.
        query = sa.select(projects.c.budget_micro_usd).where(projects.c.id == project_id)
        return self._connection.scalar(query.with_for_update(key_share=True))

    def set_budget(self, project_id: str, budget_micro_usd: int | None) -> bool:
        values = {"budget_micro_usd": budget_micro_usd, "budget_warned_at_ms": None}
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
