"""Queries that read jobs and what hangs on them."""

import functools
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.user_queries import user_store
from giornata.control.ports.user_queries.records import (
    ArtifactRecord,
    AttemptRecord,
    CheckpointRecord,
    EventRecord,
    FinishedRecord,
    JobInShort,
    JobRecord,
    LogRecord,
    MetricRecord,
    NodeRecord,
    QueueView,
    Rows,
)
from giornata.control.ports.user_queries.user_store import Before
from giornata.domain.billing.money import MS_PER_HOUR
from giornata.domain.jobs.reasons import Reason
from giornata.protocol.generation.awaited_annotations import node_kind
from giornata.protocol.jobs import JobPart
from giornata.protocol.specs import AUDIT_KIND, CANARY_KIND
from giornata.store.database.bounded_pages import bounded, rows_of, size_of
from giornata.store.database.rows import Queries, among, columns, record_of, values_of
from giornata.store.jobs.name_search import has_in_name, last_looked_at
from giornata.store.jobs.turns import before_statement, between_statement
from giornata.store.machines.node_reads import NodeReads
from giornata.store.money.ledger import shared_amounts
from giornata.store.schema import artifacts, attempts, blobs, checkpoints, events, jobs, ledger, logs, metrics

JOB_COLUMNS = columns(jobs, JobRecord)
PLATFORMS_OWN = (AUDIT_KIND, CANARY_KIND)
BILLED = frozenset({"billed_ms", "amount_micro_usd"})
ATTEMPT_COLUMNS = columns(attempts, AttemptRecord, but=BILLED)
KEY = frozenset({"key"})
# What a row weighs in a reply besides its texts and documents: names, numbers and instants.
JOB_BYTES, ATTEMPT_BYTES, ROW_BYTES = 1200, 300, 150
_PROJECT = sa.bindparam("project", type_=sa.String())
_SOME_JOBS: sa.BindParameter[Any] = sa.bindparam("jobs", expanding=True)
_bills = (
    sa.select(
        ledger.c.attempt_id,
        sa.cast(sa.func.sum(ledger.c.to_ms - ledger.c.from_ms), sa.BigInteger).label("billed_ms"),
        sa.cast(sa.func.sum(ledger.c.amount_micro_usd), sa.BigInteger).label("amount_micro_usd"),
    )
    .where(ledger.c.job_id.in_(_SOME_JOBS), ledger.c.project_id == _PROJECT)
    .group_by(ledger.c.attempt_id)
    .subquery()
)
# Made once: building a statement costs more than running it.
_IS_KNOWN = jobs.c.deleted_at_ms.is_(None)
_JOB = sa.select(*JOB_COLUMNS).where(jobs.c.id == sa.bindparam("wanted"), jobs.c.project_id == _PROJECT, _IS_KNOWN)
_WANTED = sa.bindparam("wanted", type_=sa.String())
_AFTER = sa.bindparam("after", type_=sa.BigInteger())
_MOST = sa.bindparam("most", type_=sa.Integer())
_BYTES = sa.bindparam("bytes", type_=sa.BigInteger())
# Rows of a table that knows only its job, and only if the job is the project's.
_OWN: sa.Select[Any] = sa.select(jobs.c.id).where(jobs.c.id == _WANTED, jobs.c.project_id == _PROJECT)
_EVENTS = bounded(
    events,
    columns(events, EventRecord),
    sa.select(events.c.id).where(events.c.job_id == _WANTED, events.c.project_id == _PROJECT, events.c.id > _AFTER),
    order=(events.c.id,),
    size=size_of(events.c.data) + ROW_BYTES,
    limit=_MOST,
    most_bytes=_BYTES,
)
_LOGS = bounded(
    logs,
    columns(logs, LogRecord),
    sa.select(logs.c.id).where(logs.c.job_id.in_(_OWN), logs.c.id > _AFTER),
    order=(logs.c.id,),
    size=size_of(logs.c.line) + ROW_BYTES,
    limit=_MOST,
    most_bytes=_BYTES,
)
_METRICS = bounded(
    metrics,
    columns(metrics, MetricRecord),
    sa.select(metrics.c.job_id, metrics.c.step).where(metrics.c.job_id.in_(_OWN), metrics.c.step > _AFTER),
    order=(metrics.c.step,),
    size=size_of(metrics.c["values"]) + ROW_BYTES,
    limit=_MOST,
    most_bytes=_BYTES,
)
_SPAN = sa.select(
    *(
        sa.select(end(metrics.c.step))
        .where(metrics.c.job_id == _WANTED, metrics.c.step > _AFTER)
        .scalar_subquery()
        .label(name)
        for name, end in (("first", sa.func.min), ("last", sa.func.max))
    )
)
_IN_SHORT = sa.select(
    jobs.c.id, jobs.c.name, jobs.c.state, jobs.c.spec["image_format"].as_string().label("image_format")
).where(jobs.c.id == _WANTED, jobs.c.project_id == _PROJECT, _IS_KNOWN)
_EXISTS = sa.select(jobs.c.id).where(jobs.c.id == sa.bindparam("wanted"), jobs.c.project_id == _PROJECT, _IS_KNOWN)


@functools.cache
def _heads_of(dialect_name: str, table: sa.Table) -> sa.Select[Any]:
    """Return the last id of each job in a table with an index on (job_id, id)."""
    last = sa.select(sa.func.max(table.c.id)).where(table.c.job_id == jobs.c.id).scalar_subquery()
    return sa.select(jobs.c.id, last.label("head")).where(among(dialect_name, jobs.c.id, "jobs"), _IS_KNOWN)


@functools.cache
def _curve(dialect_name: str) -> sa.Select[Any]:
    """Select the first row at or behind each of the `steps`: a probe of the primary key for each of them."""
    asked = values_of(dialect_name, metrics.c.step.type, "steps")
    behind = metrics.alias("behind")
    found = sa.select(sa.func.min(behind.c.step)).where(behind.c.job_id == _WANTED, behind.c.step >= asked)
    each_found = sa.select(found.correlate(asked.table).scalar_subquery()).select_from(asked.table)
    return bounded(
        metrics,
        columns(metrics, MetricRecord),
        sa.select(metrics.c.job_id, metrics.c.step).where(
            metrics.c.job_id == _WANTED, metrics.c.step.in_(each_found)
        ),
        order=(metrics.c.step,),
        newest_first=True,
        size=size_of(metrics.c["values"]) + ROW_BYTES,
        limit=_MOST,
        most_bytes=_BYTES,
    )


def _attempts_of_jobs(*columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
    return (
        sa.select(*columns, *(sa.func.coalesce(_bills.c[name], 0).label(name) for name in sorted(BILLED)))
        .join(jobs, jobs.c.id == attempts.c.job_id)
        .outerjoin(_bills, _bills.c.attempt_id == attempts.c.id)
        # An order has thousands of leases; its reply counts its pictures instead.
        .where(attempts.c.job_id.in_(_SOME_JOBS), jobs.c.project_id == _PROJECT, attempts.c.pictures == 0)
        .order_by(attempts.c.job_id, attempts.c.number)
    )


_ATTEMPTS = _attempts_of_jobs(*ATTEMPT_COLUMNS)
_ATTEMPTS_IN_SHORT = _attempts_of_jobs(
    *columns(attempts, AttemptRecord, but=BILLED | {"message"}), sa.null().label("message")
)


class JobReads(Queries, user_store.JobReads):
    @cached_property
    def _nodes(self) -> NodeReads:
        return NodeReads(self._connection, self._dialect_name)

    def get(self, job_id: str, *, project_id: str) -> JobRecord | None:
        row = self._connection.execute(_JOB, {"wanted": job_id, "project": project_id}).first()
        return None if row is None else record_of(JobRecord, row)

    def in_short(self, job_id: str, *, project_id: str) -> JobInShort | None:
        row = self._connection.execute(_IN_SHORT, {"wanted": job_id, "project": project_id}).first()
        return None if row is None else JobInShort(**row._mapping)

    def exists(self, job_id: str, *, project_id: str) -> bool:
        return self._connection.scalar(_EXISTS, {"wanted": job_id, "project": project_id}) is not None

    def page(
        self,
        *,
        project_id: str,
        states: Sequence[str],
        labels: Mapping[str, str],
        kind: str | None,
        match: str | None = None,
        search: str | None = None,
        looked_until: Before = None,
        before: Before,
        include: Collection[JobPart],
        limit: int,
        most_bytes: int,
    ) -> Rows[JobRecord]:
        wanted = sa.select(jobs.c.id, jobs.c.created_at_ms).where(jobs.c.project_id == project_id, _IS_KNOWN)
        wanted = wanted.where(*(jobs.c.labels[name].as_string() == value for name, value in labels.items()))
        if states:
            wanted = wanted.where(jobs.c.state.in_(states))
        # Canaries and audits are the platform's own; a list shows them only when it asks for their kind.
        wanted = wanted.where(jobs.c.kind.not_in(PLATFORMS_OWN) if kind is None else jobs.c.kind == kind)
        if match is not None:
            begins = (jobs.c.id.startswith(begin, autoescape=True) for begin in (match, f"job_{match}"))
            wanted = wanted.where(sa.or_(jobs.c.name == match, *begins))
        if search is not None:
            wanted = wanted.where(*has_in_name(search, looked_until))
        if before is not None:
            wanted = wanted.where(sa.tuple_(jobs.c.created_at_ms, jobs.c.id) < before)
        left_out: dict[str, Any] = {part: {} for part in JobPart if part not in include}
        sized = size_of(jobs.c.labels, jobs.c.error, jobs.c.faults, *(jobs.c[part] for part in include))
        query = bounded(
            jobs,
            columns(jobs, JobRecord, but=frozenset(left_out)),
            wanted,
            order=(jobs.c.created_at_ms, jobs.c.id),
            newest_first=True,
            size=sized + JOB_BYTES + ATTEMPT_BYTES * jobs.c.attempt_count,
            limit=limit,
            most_bytes=most_bytes,
        )
        return rows_of(JobRecord, self._connection.execute(query).all(), **left_out)

    def last_looked_at(self, *, project_id: str, kind: str | None, before: Before, most: int) -> Before:
        query = last_looked_at(project_id=project_id, kind=kind, before=before, most=most)
        row = self._connection.execute(query).first()
        return None if row is None else (row.created_at_ms, row.id)

    def attempts(self, job_ids: Sequence[str], *, project_id: str, messages: bool = True) -> list[AttemptRecord]:
        query = _ATTEMPTS if messages else _ATTEMPTS_IN_SHORT
        rows = self._connection.execute(query, {"jobs": job_ids, "project": project_id})
        found = [record_of(AttemptRecord, row) for row in rows]
        shared = shared_amounts(self._connection, job_ids, project_id=project_id)
        return [replace(each, amount_micro_usd=shared.get(each.id, each.amount_micro_usd)) for each in found]

    def events(self, job_id: str, *, project_id: str, after: int, limit: int, most_bytes: int) -> Rows[EventRecord]:
        wanted = {"wanted": job_id, "project": project_id, "after": after, "most": limit, "bytes": most_bytes}
        return rows_of(EventRecord, self._connection.execute(_EVENTS, wanted).all())

    def newest_events(self, job_id: str, *, project_id: str, types: Sequence[str], limit: int) -> list[EventRecord]:
        mine = (events.c.job_id == job_id, events.c.project_id == project_id, events.c.type.in_(types))
        query = sa.select(*columns(events, EventRecord)).where(*mine).order_by(events.c.id.desc()).limit(limit)
        return [record_of(EventRecord, row) for row in self._connection.execute(query)]

    def logs(self, job_id: str, *, project_id: str, after: int, limit: int, most_bytes: int) -> Rows[LogRecord]:
        wanted = {"wanted": job_id, "project": project_id, "after": after, "most": limit, "bytes": most_bytes}
        return rows_of(LogRecord, self._connection.execute(_LOGS, wanted).all())

    def steps(self, job_ids: Sequence[str]) -> dict[str, int]:
        query = sa.select(jobs.c.id, jobs.c.step).where(among(self._dialect_name, jobs.c.id, "jobs"), _IS_KNOWN)
        return {row.id: row.step for row in self._connection.execute(query, {"jobs": list(job_ids)})}

    def event_heads(self, job_ids: Sequence[str]) -> dict[str, int]:
        return self._heads(events, job_ids)

    def log_heads(self, job_ids: Sequence[str]) -> dict[str, int]:
        return self._heads(logs, job_ids)

    def _heads(self, table: sa.Table, job_ids: Sequence[str]) -> dict[str, int]:
        found = self._connection.execute(_heads_of(self._dialect_name, table), {"jobs": list(job_ids)})
        return {row.id: row.head or 0 for row in found}

    def metrics(
        self, job_id: str, *, project_id: str, after_step: int, limit: int, most_bytes: int
    ) -> Rows[MetricRecord]:
        wanted = {"wanted": job_id, "project": project_id, "after": after_step, "most": limit, "bytes": most_bytes}
        return rows_of(MetricRecord, self._connection.execute(_METRICS, wanted).all())

    def metric_span(self, job_id: str, *, after_step: int) -> tuple[int, int] | None:
        row = self._connection.execute(_SPAN, {"wanted": job_id, "after": after_step}).one()
        return None if row.first is None else (row.first, row.last)

    def curve(self, job_id: str, *, steps: Sequence[int], most_bytes: int) -> list[MetricRecord]:
        wanted = {"wanted": job_id, "steps": list(steps), "most": len(steps), "bytes": most_bytes}
        return list(
            rows_of(MetricRecord, self._connection.execute(_curve(self._dialect_name), wanted).all()).items[::-1]
        )

    def checkpoints(
        self,
        job_id: str,
        *,
        project_id: str,
        steps: Collection[int] | None = None,
        below: int | None = None,
        limit: int | None = None,
    ) -> list[CheckpointRecord]:
        query = (
            sa.select(*columns(checkpoints, CheckpointRecord, but=KEY), blobs.c.key)
            .join(blobs, _same_bytes(checkpoints))
            .where(checkpoints.c.job_id == job_id, checkpoints.c.project_id == project_id)
            .where(checkpoints.c.rejected.is_(sa.false()))
            .order_by(checkpoints.c.step.desc())
            .limit(limit)
        )
        if steps is not None:
            query = query.where(checkpoints.c.step.in_(steps))
        if below is not None:
            query = query.where(checkpoints.c.step < below)
        return [record_of(CheckpointRecord, row) for row in self._connection.execute(query)]

    def checkpoint_with(self, sha256: str, *, project_id: str) -> tuple[str, int] | None:
        c = checkpoints.c
        query = sa.select(c.job_id, c.step).where(c.project_id == project_id, c.sha256 == sha256)
        row = self._connection.execute(query.order_by(c.created_at_ms, c.job_id).limit(1)).first()
        return None if row is None else (row.job_id, row.step)

    def artifacts(
        self, job_id: str, *, project_id: str, after: str = "", limit: int | None = None
    ) -> list[ArtifactRecord]:
        query = _artifacts_of(job_id, project_id).order_by(artifacts.c.name).limit(limit)
        return self._artifacts(query.where(artifacts.c.name > after) if after else query)

    def artifact(self, job_id: str, name: str, *, project_id: str) -> ArtifactRecord | None:
        return next(iter(self._artifacts(_artifacts_of(job_id, project_id).where(artifacts.c.name == name))), None)

    def sheets(self, job_id: str, *, project_id: str, limit: int) -> list[ArtifactRecord]:
        name = artifacts.c.name
        is_sheet = name.like("%samples-________.png") | name.like("%-samples.png") | (name == "samples.png")
        query = _artifacts_of(job_id, project_id).where(is_sheet)
        return self._artifacts(query.order_by(name.desc()).limit(limit))

    def _artifacts(self, query: sa.Select[Any]) -> list[ArtifactRecord]:
        return [record_of(ArtifactRecord, row) for row in self._connection.execute(query)]

    def finished(self, *, project_id: str, kind: str, shape_key: str, limit: int) -> list[FinishedRecord]:
        query = (
            sa.select(*columns(attempts, FinishedRecord), attempts.c.job_id)
            .add_columns(attempts.c.id.label("attempt_id"))
            .join(jobs, jobs.c.id == attempts.c.job_id)
            .where(jobs.c.project_id == project_id, jobs.c.kind == kind, jobs.c.shape_key == shape_key)
            .where(attempts.c.reason == Reason.SUCCEEDED, attempts.c.ended_at_ms.is_not(None))
            .order_by(attempts.c.ended_at_ms.desc())
            .limit(limit)
        )
        rows = self._connection.execute(query).all()
        shared = shared_amounts(self._connection, [row.job_id for row in rows], project_id=project_id)
        return [_finished(row, shared.get(row.attempt_id)) for row in rows]

    def ahead(self, *, kind: str, interrupted: bool, priority: int, turn: int, job_id: str) -> int:
        this = {"kind": kind, "priority": priority, "turn": turn, "job": job_id}
        return self._connection.scalar(before_statement(interrupted=interrupted), this) or 0

    def queue_view(self, job: JobRecord, *, seen_since_ms: int) -> QueueView:
        view = self._nodes.live(
            job.id, kind=node_kind(job.kind, job.spec), project_id=job.project_id, seen_since_ms=seen_since_ms
        )
        if job.only_machine_id is not None or not view.eligible_nodes:
            return view
        ahead = self.ahead(
            kind=job.kind, interrupted=job.interrupted, priority=job.priority, turn=job.turn, job_id=job.id
        )
        return replace(view, ahead=ahead)

    def queue_views(self, new: Sequence[JobRecord], *, seen_since_ms: int) -> list[QueueView]:
        views: dict[tuple[str, int], QueueView] = {}
        kinds: dict[str, str] = {}
        for job in new:
            kind = kinds[job.id] = node_kind(job.kind, job.spec)
            if (kind, job.min_vram_bytes) not in views:
                views[kind, job.min_vram_bytes] = self._nodes.live(
                    job.id, kind=kind, project_id=job.project_id, seen_since_ms=seen_since_ms
                )
        counted = [job for job in new if views[kinds[job.id], job.min_vram_bytes].eligible_nodes]
        ahead = self._ahead_each(counted)
        return [replace(views[kinds[job.id], job.min_vram_bytes], ahead=ahead.get(job.id, 0)) for job in new]

    def _ahead_each(self, jobs: Sequence[JobRecord]) -> dict[str, int]:
        """Return the number of jobs ahead of each, by id, for jobs that were never interrupted.

        The jobs before the first are counted, and those between are read.
        """
        alike: dict[tuple[str, int], list[tuple[int, str]]] = defaultdict(list)
        for job in jobs:
            alike[job.kind, job.priority].append((job.turn, job.id))
        ahead: dict[str, int] = {}
        for (kind, priority), places in alike.items():
            (turn, job_id), (last_turn, last_id) = min(places), max(places)
            before = self.ahead(kind=kind, interrupted=False, priority=priority, turn=turn, job_id=job_id)
            bounds = {"kind": kind, "priority": priority, "turn": turn, "job": job_id}
            last = {"last_turn": last_turn, "last_job": last_id}
            found = (
                self._connection.scalars(between_statement(), {**bounds, **last}).all() if places[1:] else [job_id]
            )
            ahead |= {of: before + number for number, of in enumerate(found)}
        return ahead

    def nodes(
        self, *, project_id: str | None, seen_since_ms: int | None, before: Before, limit: int, most_bytes: int
    ) -> Rows[NodeRecord]:
        return self._nodes.page(
            project_id=project_id, seen_since_ms=seen_since_ms, before=before, limit=limit, most_bytes=most_bytes
        )

    def node(self, node_id: str) -> NodeRecord | None:
        return self._nodes.one(node_id)


def _finished(row: Any, shared_micro_usd: int | None) -> FinishedRecord:
    """Return the record with what the attempt paid an hour, where that was a share."""
    values = {name: row._mapping[name] for name in FinishedRecord.__slots__}
    lived_ms = row.ended_at_ms - row.started_at_ms
    if shared_micro_usd is not None and lived_ms > 0:
        values["price_micro_usd_per_hour"] = round(shared_micro_usd * MS_PER_HOUR / lived_ms)
    return FinishedRecord(**values)


def _artifacts_of(job_id: str, project_id: str) -> sa.Select[Any]:
    return (
        sa.select(*columns(artifacts, ArtifactRecord, but=KEY), blobs.c.key)
        .join(blobs, _same_bytes(artifacts))
        .where(artifacts.c.job_id == job_id, artifacts.c.project_id == project_id)
    )


def _same_bytes(table: sa.Table) -> sa.ColumnElement[bool]:
    return (blobs.c.project_id == table.c.project_id) & (blobs.c.sha256 == table.c.sha256)
