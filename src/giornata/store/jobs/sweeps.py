"""Queries for sweeps and their jobs."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.user_queries import sweep_store
from giornata.control.ports.user_queries.records import ArtifactRecord, JobRecord
from giornata.control.ports.user_queries.sweep_store import OpenSweep, SweptRow
from giornata.domain.jobs.job import JobState
from giornata.protocol.training.file_names import BY_STEP, SAMPLES
from giornata.store.database.rows import Queries, columns, record_of
from giornata.store.money.budgets import Spending
from giornata.store.schema import artifacts, blobs, jobs, metrics

_SHEETS = "samples-"
"""A part of the names of sheets that are made while a job goes on."""
_SWEEPS = jobs.alias("sweeps")
# A constant in the text, because a planner cannot prove that a parameter matches a partial index.
_OPEN = sa.literal_column("jobs.kind = 'sweep' AND jobs.state IN ('running', 'paused')", sa.Boolean)
_SOME_OPEN = sa.select(jobs.c.id).where(_OPEN).order_by(jobs.c.id).limit(sa.bindparam("most", type_=sa.Integer()))
_SWEPT = jobs.alias("swept")
_COUNTED = (
    sa.select(_SWEEPS.c.id, _SWEEPS.c.state, _SWEEPS.c.step, _SWEEPS.c.budget_micro_usd)
    .add_columns(_SWEPT.c.state.label("of_jobs"), sa.func.count().label("counted"))
    .join_from(_SWEEPS, _SWEPT, _SWEPT.c.parent_id == _SWEEPS.c.id)
    .where(_SWEEPS.c.id.in_(_SOME_OPEN))
    .group_by(_SWEEPS.c.id, _SWEEPS.c.state, _SWEEPS.c.step, _SWEEPS.c.budget_micro_usd, _SWEPT.c.state)
    .order_by(_SWEEPS.c.id)
)
_SWEEP = sa.bindparam("sweep", type_=sa.String())
_PROJECT = sa.bindparam("project", type_=sa.String())
_SOME_JOBS: sa.BindParameter[Any] = sa.bindparam("jobs", expanding=True)
_MINE = (jobs.c.id.in_(_SOME_JOBS), jobs.c.project_id == _PROJECT, jobs.c.deleted_at_ms.is_(None))
# Made once: building a statement costs more than running it.
_JOBS = (
    sa.select(*(jobs.c[name] for name in SweptRow.__slots__)).where(jobs.c.parent_id == _SWEEP).order_by(jobs.c.id)
)
_RECORDS = sa.select(*columns(jobs, JobRecord)).where(*_MINE).order_by(jobs.c.id)
_LOSSES = (
    sa.select(
        metrics.c.job_id,
        sa.func.avg(metrics.c["values"]["loss"].as_float()).label("loss"),
    )
    .join(jobs, jobs.c.id == metrics.c.job_id)
    .where(*_MINE, metrics.c.step * 10 > jobs.c.step * 9)
    .group_by(metrics.c.job_id)
)
# The sheet of the end is last, and before it the sheets of the steps by their names.
_FROM_THE_LAST = sa.func.row_number().over(
    partition_by=artifacts.c.job_id, order_by=(artifacts.c.name.endswith(SAMPLES).desc(), artifacts.c.name.desc())
)
_RANKED = (
    sa.select(artifacts.c.job_id, artifacts.c.name, _FROM_THE_LAST.label("from_the_last"))
    .join(jobs, jobs.c.id == artifacts.c.job_id)
    .where(*_MINE, artifacts.c.name.endswith(".png"), ~artifacts.c.name.endswith(BY_STEP))
    .where(artifacts.c.name.contains(_SHEETS) | artifacts.c.name.endswith(SAMPLES))
    .subquery("ranked")
)
_LAST_SHEETS = (
    sa.select(artifacts.c.job_id, *columns(artifacts, ArtifactRecord, but=frozenset({"key"})), blobs.c.key)
    .join(_RANKED, (_RANKED.c.job_id == artifacts.c.job_id) & (_RANKED.c.name == artifacts.c.name))
    .join(blobs, (blobs.c.project_id == artifacts.c.project_id) & (blobs.c.sha256 == artifacts.c.sha256))
    .where(_RANKED.c.from_the_last == 1)
)


class Sweeps(Queries, sweep_store.Sweeps):
    def open_sweeps(self, *, limit: int) -> list[OpenSweep]:
        counts: dict[str, dict[JobState, int]] = defaultdict(dict)
        rows = {}
        for row in self._connection.execute(_COUNTED, {"most": limit}):
            counts[row.id][JobState(row.of_jobs)] = row.counted
            rows[row.id] = row
        return [
            OpenSweep(
                id=each.id,
                state=JobState(each.state),
                step=each.step,
                budget_micro_usd=each.budget_micro_usd,
                counts=counts[each.id],
            )
            for each in rows.values()
        ]

    def jobs(self, sweep_id: str) -> list[SweptRow]:
        rows = self._connection.execute(_JOBS, {"sweep": sweep_id})
        return [SweptRow(**{**row._mapping, "state": JobState(row.state)}) for row in rows]

    def spent(self, sweep_ids: Sequence[str]) -> Mapping[str, int]:
        query = sa.select(jobs.c.id, jobs.c.parent_id).where(jobs.c.parent_id.in_(sweep_ids))
        parents = {row.id: row.parent_id for row in self._connection.execute(query)}
        spent = dict.fromkeys(sweep_ids, 0)
        of_jobs = Spending(self._connection, self._dialect_name).of_jobs(list(parents))
        for job_id, amount in of_jobs.items():
            spent[parents[job_id]] += amount
        return spent

    def records(self, job_ids: Sequence[str], *, project_id: str) -> list[JobRecord]:
        rows = self._connection.execute(_RECORDS, {"jobs": job_ids, "project": project_id})
        return [record_of(JobRecord, row) for row in rows]

    def losses(self, job_ids: Sequence[str], *, project_id: str) -> dict[str, float]:
        rows = self._connection.execute(_LOSSES, {"jobs": job_ids, "project": project_id})
        return {row.job_id: row.loss for row in rows if row.loss is not None}

    def last_sheets(self, job_ids: Sequence[str], *, project_id: str) -> dict[str, ArtifactRecord]:
        rows = self._connection.execute(_LAST_SHEETS, {"jobs": job_ids, "project": project_id})
        found = [dict(row._mapping) for row in rows]
        return {values.pop("job_id"): ArtifactRecord(**values) for values in found}
