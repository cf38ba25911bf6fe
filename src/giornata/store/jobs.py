"""Jobs and their states. Every change of state is guarded by the state it starts from."""

from typing import Any

import sqlalchemy as sa

from giornata.control.ports.work_store import JobRow, Wanted
from giornata.domain.errors import IllegalTransition
from giornata.domain.job import JobEvent, JobState, next_state, sources
from giornata.store.claiming import QUEUED, any_queued, eligible, first_of_queue, in_project
from giornata.store.schema import attempts, jobs

_COLUMNS = tuple(jobs.c[name] for name in JobRow.__slots__)


class Jobs:
    """See `giornata.control.ports.work_store.Jobs`."""

    def __init__(self, connection: sa.Connection, dialect_name: str) -> None:
        self._connection = connection
        self._dialect_name = dialect_name

    def claimable(self, wanted: Wanted) -> bool:
        return self._any(any_queued(wanted.kinds, eligible(wanted)))

    def take(self, wanted: Wanted, *, attempt_id: str, at_ms: int) -> JobRow | None:
        taken = self._connection.execute(take_statement(wanted, attempt_id=attempt_id, at_ms=at_ms)).first()
        return None if taken is None else _job(taken)

    def why_nothing(self, wanted: Wanted) -> str:
        if self.claimable(wanted):
            return "empty-queue"  # the last one is just being taken by somebody else
        if self._any(any_queued(wanted.kinds, in_project(wanted))):
            return "banned"
        others = sa.select(jobs.c.id).where(QUEUED, *in_project(wanted)).limit(1)
        return "no-such-kind" if self._any(others) else "empty-queue"

    def get(self, job_id: str) -> JobRow | None:
        return self._one(sa.select(*_COLUMNS).where(jobs.c.id == job_id))

    def lock(self, job_id: str) -> JobRow | None:
        return self._one(sa.select(*_COLUMNS).where(jobs.c.id == job_id).with_for_update())

    def lock_of_attempt(self, attempt_id: str) -> JobRow | None:
        owner = sa.select(attempts.c.job_id).where(attempts.c.id == attempt_id).scalar_subquery()
        return self._one(sa.select(*_COLUMNS).where(jobs.c.id == owner).with_for_update())

    def change(self, job: JobRow, event: JobEvent, **columns: Any) -> JobState:
        target = next_state(job.state, event)
        changed = self._connection.execute(
            sa.update(jobs).where(jobs.c.id == job.id, jobs.c.state == job.state).values(state=target, **columns)
        )
        if changed.rowcount != 1:
            raise IllegalTransition(f"the job is no longer {job.state}, so it cannot {event}")
        return target

    def update(self, job_id: str, **columns: Any) -> None:
        self._connection.execute(sa.update(jobs).where(jobs.c.id == job_id).values(**columns))

    def past_deadline(self, *, at_ms: int, limit: int) -> list[str]:
        alive: sa.ColumnElement[bool] = sa.literal_column(
            "state IN ('queued', 'running') AND deadline_at_ms IS NOT NULL"
        )
        found = sa.select(jobs.c.id).where(alive, jobs.c.deadline_at_ms <= at_ms)
        return list(self._connection.scalars(found.order_by(jobs.c.deadline_at_ms).limit(limit)))

    def _any(self, query: sa.Select[Any]) -> bool:
        return self._connection.execute(query).first() is not None

    def _one(self, query: sa.Select[Any]) -> JobRow | None:
        row = self._connection.execute(query).first()
        return None if row is None else _job(row)


def take_statement(wanted: Wanted, *, attempt_id: str, at_ms: int) -> sa.Update:
    """The claim: pick and take in one statement; tests hold both planners to its indexes."""
    return (
        sa.update(jobs)
        .where(
            jobs.c.id == first_of_queue(wanted).scalar_subquery(),
            jobs.c.state.in_(sources(JobEvent.CLAIM)),
        )
        .values(
            state=next_state(JobState.QUEUED, JobEvent.CLAIM),
            attempt_count=jobs.c.attempt_count + 1,
            attempt_id=attempt_id,
            started_at_ms=sa.func.coalesce(jobs.c.started_at_ms, at_ms),
            phase="",
        )
        .returning(*_COLUMNS)
    )


def _job(row: sa.Row[Any]) -> JobRow:
    values = dict(row._mapping)
    return JobRow(**values | {"state": JobState(values["state"])})
