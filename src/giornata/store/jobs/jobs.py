"""Queries for jobs and their states. Every change of state is guarded by the state it starts from."""

import functools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.node_queries import work_store
from giornata.control.ports.node_queries.work_rows import JobRow, QueuedDemand, Taking, Wanted
from giornata.domain.errors import IllegalTransition
from giornata.domain.jobs.job import JobEvent, JobState, next_state, sources
from giornata.store import schema
from giornata.store.database.rows import ROWS, Queries, among, row_list, types_of, update_rows
from giornata.store.jobs.claiming import (
    FOR_ANYONE,
    QUEUED,
    ClaimPlan,
    ClaimQueryKey,
    claim_query,
    eligible,
    first_of_queue,
    memory_of,
)
from giornata.store.jobs.queue import is_claimable, read_demand, why_nothing
from giornata.store.schema import attempts, jobs, projects

# Not columns of the job. They are in the statement that locks the job, so that asking for them costs no query more.
_OF_PROJECT = {
    "project_budget_micro_usd": projects.c.budget_micro_usd,
    "project_monthly_budget_micro_usd": projects.c.monthly_budget_micro_usd,
}
_OF_SWEEP = "sweep_budget_micro_usd"
_COLUMNS = tuple(jobs.c[name] for name in JobRow.__slots__ if name not in {*_OF_PROJECT, _OF_SWEEP})
_PROJECT_BUDGETS = [
    sa.select(column).where(projects.c.id == jobs.c.project_id).scalar_subquery().label(name)
    for name, column in _OF_PROJECT.items()
]
_SWEEPS = jobs.alias("sweeps")
_SWEEP_BUDGET = (
    sa.select(_SWEEPS.c.budget_micro_usd).where(_SWEEPS.c.id == jobs.c.parent_id).scalar_subquery().label(_OF_SWEEP)
)
_WHOLE = (*_COLUMNS, *_PROJECT_BUDGETS, _SWEEP_BUDGET)  # in the order of the fields of JobRow
# Made once: building a statement costs more than running it.
_BY_ID = sa.select(*_WHOLE).where(jobs.c.id == sa.bindparam("wanted"))
# Weaker than what a foreign key waits for: a lease of pictures is billed to orders that somebody else may hold.
_LOCK = _BY_ID.with_for_update(key_share=True)
_LOCK_OF_ATTEMPT = (
    sa.select(*_WHOLE)
    .where(jobs.c.id == sa.select(attempts.c.job_id).where(attempts.c.id == sa.bindparam("wanted")).scalar_subquery())
    .with_for_update(key_share=True)
)
_TAKEN: dict[str, Any] = {
    "state": next_state(JobState.QUEUED, JobEvent.CLAIM),
    "attempt_count": jobs.c.attempt_count + 1,
    "attempt_id": sa.bindparam("new_attempt", required=False),
    "started_at_ms": sa.func.coalesce(jobs.c.started_at_ms, sa.bindparam("now", type_=sa.BigInteger, required=False)),
    "phase": "",
}
_alive: sa.ColumnElement[bool] = sa.literal_column(
    "state IN ('queued', 'running', 'paused') AND deadline_at_ms IS NOT NULL"
)
_PAST_DEADLINE = (
    sa.select(jobs.c.id)
    .where(_alive, jobs.c.deadline_at_ms <= sa.bindparam("at"))
    .order_by(jobs.c.deadline_at_ms)
    .limit(sa.bindparam("most", type_=sa.Integer()))
)


NO_ROOMS: Mapping[str, int] = MappingProxyType({})


class Jobs(Queries, work_store.Jobs):
    def claimable(self, wanted: Wanted) -> bool:
        return is_claimable(self._connection, wanted)

    def head_priority(self, wanted: Wanted) -> int | None:
        query = claim_query(wanted)
        found: int | None = self._connection.scalar(_head(query.key._replace(models=0)), {**query.values})
        return found

    def take(self, claim: Taking, *, at_ms: int) -> JobRow | None:
        query = claim_query(claim.wanted)
        values = {**query.values, "new_attempt": claim.attempt_id, "now": at_ms}
        taken = self._connection.execute(take_statement(query.key), values).first()
        return None if taken is None else _job(taken)

    def take_each(
        self, claims: Sequence[Taking], *, at_ms: int, rooms: Mapping[str, int] = NO_ROOMS
    ) -> list[JobRow | None]:
        if len(claims) == 1:
            return [self.take(claims[0], at_ms=at_ms)]
        plan = ClaimPlan(self._connection, self._dialect_name, claims, rooms)
        taken: dict[str, JobRow] = {}  # by attempt
        chosen: list[tuple[Taking, str]] = []
        for claim in claims:
            job_id = plan.first_for(claim)
            if job_id is not None:
                chosen.append((claim, job_id))
            elif not plan.saw_all(claim):
                # All that were looked at are taken or banned: the database has to look further.
                taken |= self._take_these(chosen, at_ms=at_ms)
                chosen = []
                job = self.take(plan.for_one(claim), at_ms=at_ms)
                if job is not None:
                    plan.note_taken(job.id, job.project_id)
                    taken[claim.attempt_id] = job
        taken |= self._take_these(chosen, at_ms=at_ms)
        return [taken.get(claim.attempt_id) for claim in claims]

    def _take_these(self, chosen: Sequence[tuple[Taking, str]], *, at_ms: int) -> dict[str, JobRow]:
        if not chosen:
            return {}
        rows = [
            {
                "id": job_id,
                "only_machine_id": claim.wanted.machine_id,
                "min_vram_bytes": memory_of(claim.wanted),
                "attempt_id": claim.attempt_id,
            }
            for claim, job_id in chosen
        ]
        taken = self._connection.execute(_take_these(self._dialect_name), {ROWS: rows, "now": at_ms}).all()
        if len(taken) != len(rows):
            raise IllegalTransition("a job that was locked for a claim is not there for it")
        return {row.attempt_id: _job(row) for row in taken}

    def why_nothing(self, wanted: Wanted) -> str:
        return why_nothing(self._connection, wanted)

    def demand(self) -> list[QueuedDemand]:
        return read_demand(self._connection)

    def get(self, job_id: str) -> JobRow | None:
        return self._one(_BY_ID, job_id)

    def lock(self, job_id: str) -> JobRow | None:
        return self._one(_LOCK, job_id)

    def lock_of_attempt(self, attempt_id: str) -> JobRow | None:
        return self._one(_LOCK_OF_ATTEMPT, attempt_id)

    def lock_of_attempts(self, attempt_ids: Sequence[str]) -> Mapping[str, JobRow]:
        found = self._connection.execute(_lock_of_attempts(self._dialect_name), {"wanted": list(attempt_ids)})
        return {row.id: _job(row) for row in found}

    def lock_unbegun(self, kind: str, *, name_begins: str) -> Sequence[JobRow]:
        named = (jobs.c.kind == kind, jobs.c.name.startswith(name_begins, autoescape=True))
        query = sa.select(*_WHOLE).where(FOR_ANYONE, jobs.c.attempt_count == 0, *named)
        query = query.with_for_update(key_share=True, skip_locked=True, of=jobs)
        return [_job(row) for row in self._connection.execute(query)]

    def change(self, job: JobRow, event: JobEvent, **columns: Any) -> JobState:
        target = next_state(job.state, event)
        values = {"wanted": job.id, "was": job.state, "state": target, **columns}
        changed = self._connection.execute(_change(("state", *columns)), values)
        if changed.rowcount != 1:
            raise IllegalTransition(f"the job is no longer {job.state}, so it cannot {event}")
        return target

    def change_each(
        self, jobs: Sequence[JobRow], event: JobEvent, columns_by_id: Mapping[str, Mapping[str, Any]]
    ) -> None:
        by_state: dict[JobState, list[dict[str, Any]]] = {}
        for job in jobs:
            row = {"id": job.id, "state": next_state(job.state, event), **columns_by_id[job.id]}
            by_state.setdefault(job.state, []).append(row)
        for state, rows in by_state.items():
            changed = update_rows(self._connection, self._dialect_name, schema.jobs, rows, state=state)
            if changed != len(rows):
                raise IllegalTransition(f"a job is no longer {state}, so it cannot {event}")

    def update(self, job_id: str, **columns: Any) -> None:
        self._connection.execute(_update(tuple(columns)), {"wanted": job_id, **columns})

    def update_each(self, columns_by_id: Mapping[str, Mapping[str, Any]]) -> None:
        by_names: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for job_id, columns in columns_by_id.items():
            by_names.setdefault(tuple(columns), []).append({"id": job_id, **columns})
        for rows in by_names.values():
            update_rows(self._connection, self._dialect_name, jobs, rows)

    def past_deadline(self, *, at_ms: int, limit: int) -> list[str]:
        return list(self._connection.scalars(_PAST_DEADLINE, {"at": at_ms, "most": limit}))

    def _one(self, query: sa.Select[Any], wanted: str) -> JobRow | None:
        row = self._connection.execute(query, {"wanted": wanted}).first()
        return None if row is None else _job(row)


@functools.lru_cache(maxsize=64)
def _head(key: ClaimQueryKey) -> sa.Select[Any]:
    first = first_of_queue(key, lock=False).scalar_subquery()
    return sa.select(jobs.c.priority).where(jobs.c.id == first)


@functools.cache
def _lock_of_attempts(dialect_name: str) -> sa.Select[Any]:
    """Lock jobs in the order of their ids: two who lock several must not wait for one another."""
    theirs = sa.select(attempts.c.job_id).where(among(dialect_name, attempts.c.id, "wanted"))
    return sa.select(*_WHOLE).where(jobs.c.id.in_(theirs)).order_by(jobs.c.id).with_for_update(key_share=True)


@functools.cache
def _take_these(dialect_name: str) -> Any:
    """Take jobs that were picked and locked before; the bans stand here all the same."""
    given = row_list(dialect_name, types_of(jobs, "id", "only_machine_id", "min_vram_bytes", "attempt_id"))
    mine = (jobs.c.id == given.c.id, QUEUED, *eligible(given.c.only_machine_id, given.c.min_vram_bytes, None))
    values = {**_TAKEN, "attempt_id": given.c.attempt_id}
    return sa.update(jobs).where(*mine).values(values).returning(*_COLUMNS)


@functools.cache
def _update(names: tuple[str, ...]) -> sa.Update:
    """Return the update of these columns. The use cases set only a few combinations of columns."""
    statement = sa.update(jobs).where(jobs.c.id == sa.bindparam("wanted"))
    return statement.values({name: sa.bindparam(name) for name in names})


@functools.cache
def _change(names: tuple[str, ...]) -> sa.Update:
    return _update(names).where(jobs.c.state == sa.bindparam("was"))


@functools.lru_cache(maxsize=256)
def take_statement(key: ClaimQueryKey) -> sa.Update:
    """Return the claim: pick and take in one statement. Takes the values of a `ClaimQuery`, `new_attempt` and `now`.

    Tests hold both planners to its indexes.
    """
    first = first_of_queue(key)
    return (
        sa.update(jobs)
        .where(
            jobs.c.id == first.scalar_subquery(),
            jobs.c.state.in_(sources(JobEvent.CLAIM)),
        )
        .values(_TAKEN)
        .returning(*_COLUMNS)
    )


def _job(row: sa.Row[Any]) -> JobRow:
    values = dict(zip(JobRow.__slots__, row, strict=False))  # the last one is not asked for by everybody
    values["state"] = JobState(values["state"])
    return JobRow(**values)
