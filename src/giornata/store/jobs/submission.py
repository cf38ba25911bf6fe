"""Write new jobs, and remember the requests that made them."""

from collections.abc import Sequence
from dataclasses import asdict

import sqlalchemy as sa

from giornata.control.ports.node_queries.work_rows import INHERITED
from giornata.control.ports.user_queries import user_store
from giornata.control.ports.user_queries.records import MODEL_ROLE, JobRecord, OrderFile
from giornata.domain.jobs.job import TERMINAL
from giornata.domain.jobs.routing import Turns
from giornata.store import schema
from giornata.store.database.rows import Queries, columns, insert_rows, insert_unless_there, record_of
from giornata.store.jobs.turns import read_turns
from giornata.store.schema import checkpoints, idempotency, job_inputs, jobs, projects

COLUMNS = columns(jobs, JobRecord)
# Made once: building a statement costs more than running it.
# Weaker than what a foreign key waits for: nobody else has to wait. SQLite has one writer as it is.
_HOLD_PROJECT = (
    sa.select(projects.c.id).where(projects.c.id == sa.bindparam("wanted")).with_for_update(key_share=True)
)
_INSERT_INPUT = sa.insert(job_inputs)


class Submission(Queries, user_store.Submission):
    def remembered(self, project_id: str, key: str, route: str, *, since_ms: int) -> tuple[str, str] | None:
        query = sa.select(idempotency.c.request_sha256, idempotency.c.job_id).where(
            _request(project_id, key, route), idempotency.c.created_at_ms >= since_ms
        )
        row = self._connection.execute(query).first()
        return None if row is None else (row.request_sha256, row.job_id)

    def remember(
        self, project_id: str, key: str, route: str, *, request_sha256: str, job_id: str, at_ms: int, since_ms: int
    ) -> bool:
        old = _request(project_id, key, route) & (idempotency.c.created_at_ms < since_ms)
        self._connection.execute(sa.delete(idempotency).where(old))
        row = {"project_id": project_id, "key": key, "route": route, "request_sha256": request_sha256}
        statement = insert_unless_there(self._dialect_name, idempotency, **row, job_id=job_id, created_at_ms=at_ms)
        return self._connection.execute(statement).first() is not None

    def turns(self, project_id: str, *, kind: str, priority: int) -> Turns:
        return read_turns(self._connection, project_id=project_id, kind=kind, priority=priority)

    def hold_project(self, project_id: str) -> None:
        self._connection.execute(_HOLD_PROJECT, {"wanted": project_id})

    def add_each(self, jobs: Sequence[JobRecord]) -> None:
        rows = [{name: getattr(job, name) for name in JobRecord.__slots__} for job in jobs]
        insert_rows(self._connection, self._dialect_name, schema.jobs, rows)

    def add_input(self, job: JobRecord, role: str, sha256: str) -> None:
        row = {"job_id": job.id, "role": role, "project_id": job.project_id, "sha256": sha256}
        self._connection.execute(_INSERT_INPUT, row)

    def add_order_files(self, job_id: str, files: Sequence[OrderFile]) -> None:
        rows = [{"job_id": job_id, **asdict(each)} for each in files]
        self._connection.execute(_INSERT_INPUT, rows)

    def hold_models_of(self, job_id: str, others: Sequence[str]) -> None:
        file = (job_inputs.c.role, job_inputs.c.project_id, job_inputs.c.sha256)
        held = sa.select(sa.literal(job_id), *file).where(
            job_inputs.c.job_id.in_(others), job_inputs.c.role.startswith(MODEL_ROLE)
        )
        names = ["job_id", *(column.name for column in file)]
        self._connection.execute(sa.insert(job_inputs).from_select(names, held.distinct()))

    def lock(self, job_id: str, *, project_id: str) -> JobRecord | None:
        mine = (jobs.c.id == job_id) & (jobs.c.project_id == project_id) & jobs.c.deleted_at_ms.is_(None)
        query = sa.select(*COLUMNS).where(mine).with_for_update()
        row = self._connection.execute(query).first()
        return None if row is None else record_of(JobRecord, row)

    def live_retry(self, job_id: str, *, project_id: str) -> str | None:
        query = (
            sa.select(jobs.c.id)
            .where(jobs.c.project_id == project_id, jobs.c.retry_of == job_id, jobs.c.state.not_in(TERMINAL))
            .limit(1)
        )
        return self._connection.scalar(query)

    def any_retry(self, job_id: str, *, project_id: str) -> str | None:
        of_it = (jobs.c.project_id == project_id) & (jobs.c.retry_of == job_id)
        return self._connection.scalar(
            sa.select(jobs.c.id).where(of_it).order_by(jobs.c.created_at_ms.desc()).limit(1)
        )

    def inherit_checkpoints(self, *, source: str, target: str, project_id: str) -> int:
        kept = (checkpoints.c.job_id == source) & (checkpoints.c.project_id == project_id)
        kept &= checkpoints.c.rejected.is_(sa.false())
        names = ["job_id", "step", "project_id", "attempt_number", "sha256", "size_bytes", "created_at_ms"]
        copies = sa.select(
            sa.literal(target),
            checkpoints.c.step,
            checkpoints.c.project_id,
            sa.literal(INHERITED),
            checkpoints.c.sha256,
            checkpoints.c.size_bytes,
            checkpoints.c.created_at_ms,
        ).where(kept)
        self._connection.execute(sa.insert(checkpoints).from_select(names, copies))
        highest = self._connection.scalar(
            sa.select(sa.func.max(checkpoints.c.step)).where(checkpoints.c.job_id == target)
        )
        self._connection.execute(
            sa.update(jobs).where(jobs.c.id == target).values(step=highest or 0, committed_step=highest or 0)
        )
        return highest or 0


def _request(project_id: str, key: str, route: str) -> sa.ColumnElement[bool]:
    return (idempotency.c.project_id == project_id) & (idempotency.c.key == key) & (idempotency.c.route == route)
