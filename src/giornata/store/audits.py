"""Queries for replay audits and their jobs."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.node_queries import audit_store
from giornata.control.ports.node_queries.audit_store import (
    AuditRun,
    CheckpointCommit,
    FileReader,
    NodeConditions,
    ReplayAuditRow,
    TaintedJob,
)
from giornata.control.ports.node_queries.work_rows import BlobRow, CheckpointRow
from giornata.domain.fleets.starts import NodeStart
from giornata.domain.jobs.audits import AuditState
from giornata.protocol.events import EventType
from giornata.protocol.project.admin import ROOT_PROJECT
from giornata.protocol.specs import AUDIT_KIND, OF_TRAINING
from giornata.store.database.rows import Queries
from giornata.store.machines.node_reads import replaced
from giornata.store.schema import attempts, audits, blobs, events, job_inputs, jobs, ledger, metrics, nodes

CHANGES = ("sha256", "state", "message", "runs", "guilty_machine_id", "decided_at_ms")
_COLUMNS = [audits.c[name] for name in ReplayAuditRow.__slots__]
_CONDITIONS = (nodes.c.machine_id, nodes.c.fleet, nodes.c.device, nodes.c.versions)
_OPEN = sa.literal_column("decided_at_ms IS NULL", sa.Boolean)
AT_ONCE = 500


class Audits(Queries, audit_store.Audits):
    def conditions(self, node_id: str) -> NodeConditions | None:
        row = self._connection.execute(sa.select(*_CONDITIONS).where(nodes.c.id == node_id)).first()
        return None if row is None else NodeConditions(**row._mapping)

    def idle_nodes(self, *, seen_since_ms: int) -> Sequence[NodeConditions]:
        busy = sa.exists().where(attempts.c.node_id == nodes.c.id, attempts.c.ended_at_ms.is_(None))
        query = sa.select(*_CONDITIONS, nodes.c.kinds).where(
            nodes.c.project_id == ROOT_PROJECT,
            nodes.c.last_seen_at_ms >= seen_since_ms,
            nodes.c.draining.is_(sa.false()),
            nodes.c.start == NodeStart.DONE,
            ~replaced(),
            ~busy,
        )
        rows = self._connection.execute(query.order_by(nodes.c.machine_id, nodes.c.id))
        names = NodeConditions.__slots__
        return [NodeConditions(**{name: row._mapping[name] for name in names}) for row in rows if _takes(row)]

    def sound(self, machine_id: str) -> tuple[int, int | None]:
        refuted = sa.select(sa.func.max(audits.c.decided_at_ms)).where(audits.c.guilty_machine_id == machine_id)
        since_ms = self._connection.scalar(refuted) or 0
        confirmed = (audits.c.machine_id == machine_id) & (audits.c.state == AuditState.CONFIRMED)
        since = sa.func.sum(sa.case((audits.c.created_at_ms > since_ms, 1), else_=0))
        row = self._connection.execute(sa.select(since, sa.func.max(audits.c.created_at_ms)).where(confirmed)).one()
        return int(row[0] or 0), row[1]

    def was_refuted(self, machine_id: str) -> bool:
        query = sa.select(audits.c.id).where(audits.c.guilty_machine_id == machine_id).limit(1)
        return self._connection.scalar(query) is not None

    def add(self, audit: ReplayAuditRow) -> None:
        self._connection.execute(sa.insert(audits).values(asdict(audit)))

    def open_ids(self, *, limit: int) -> Sequence[str]:
        query = sa.select(audits.c.id).where(_OPEN).order_by(audits.c.created_at_ms, audits.c.id).limit(limit)
        return list(self._connection.scalars(query))

    def get(self, audit_id: str) -> ReplayAuditRow | None:
        return self._one(sa.select(*_COLUMNS).where(audits.c.id == audit_id))

    def lock(self, audit_id: str) -> ReplayAuditRow | None:
        return self._one(sa.select(*_COLUMNS).where(audits.c.id == audit_id).with_for_update())

    def _one(self, query: sa.Select[Any]) -> ReplayAuditRow | None:
        row = self._connection.execute(query).first()
        return None if row is None else _audit(row)

    def put(self, audit: ReplayAuditRow) -> None:
        values = {name: value for name, value in asdict(audit).items() if name in CHANGES}
        self._connection.execute(sa.update(audits).where(audits.c.id == audit.id).values(values))

    def of_job(self, job_id: str, *, latest: int | None = None) -> Sequence[ReplayAuditRow]:
        order = (audits.c.to_step.desc(), audits.c.created_at_ms.desc(), audits.c.id.desc())
        query = sa.select(*_COLUMNS).where(audits.c.job_id == job_id).order_by(*order).limit(latest)
        return [_audit(row) for row in self._connection.execute(query)][::-1]

    def commits(self, job_id: str, *, limit: int) -> Sequence[CheckpointCommit]:
        mine = (events.c.job_id == job_id) & (events.c.type == EventType.CHECKPOINT_COMMITTED)
        query = sa.select(events.c.attempt_number, events.c.data, events.c.at_ms).where(mine)
        found = self._connection.execute(query.order_by(events.c.id).limit(limit))
        return [
            CheckpointCommit(
                step=row.data["step"], sha256=row.data["sha256"], attempt_number=row.attempt_number, at_ms=row.at_ms
            )
            for row in found
        ]

    def pin(self, job_id: str, machine_id: str) -> bool:
        queued = (jobs.c.id == job_id) & (jobs.c.state == "queued")
        return (
            self._connection.execute(sa.update(jobs).where(queued).values(only_machine_id=machine_id)).rowcount == 1
        )

    def checkpoint(self, audit: ReplayAuditRow) -> CheckpointRow | None:
        same = (blobs.c.project_id == audit.project_id) & (blobs.c.sha256 == audit.sha256)
        row = self._connection.execute(sa.select(blobs.c.sha256, blobs.c.size_bytes, blobs.c.key).where(same)).first()
        if row is None:
            return None
        blob = BlobRow(**row._mapping)
        return CheckpointRow(step=audit.to_step, attempt_number=audit.attempt_number, rejected=False, blob=blob)

    def losses(self, job_id: str, *, attempt_number: int, from_step: int, to_step: int) -> Mapping[int, float]:
        mine = (metrics.c.job_id == job_id) & (metrics.c.attempt_number == attempt_number)
        steps = (metrics.c.step > from_step) & (metrics.c.step <= to_step)
        found = self._connection.execute(sa.select(metrics.c.step, metrics.c["values"]).where(mine, steps))
        return {row[0]: row[1]["loss"] for row in found if "loss" in row[1]}

    def release_earlier(self, job_id: str) -> None:
        kept = (audits.c.job_id == job_id) & audits.c.decided_at_ms.is_not(None) & audits.c.sha256.is_not(None)
        latest = sa.select(sa.func.max(audits.c.to_step)).where(kept).scalar_subquery()
        self._connection.execute(sa.update(audits).where(kept, audits.c.to_step < latest).values(sha256=None))

    def release_old(self, *, ended_before_ms: int) -> int:
        ended = sa.exists().where(jobs.c.id == audits.c.job_id, jobs.c.ended_at_ms < ended_before_ms)
        kept = audits.c.sha256.is_not(None) & audits.c.decided_at_ms.is_not(None)
        return self._connection.execute(sa.update(audits).where(kept, ended).values(sha256=None)).rowcount

    def tainted(self, machine_id: str, *, since_ms: int) -> Sequence[TaintedJob]:
        mine = (attempts.c.machine_id == machine_id) & (attempts.c.committed_step > attempts.c.start_step)
        lately = attempts.c.ended_at_ms.is_(None) | (attempts.c.ended_at_ms >= since_ms)
        query = (
            sa.select(attempts.c.job_id, attempts.c.id)
            .join(jobs, jobs.c.id == attempts.c.job_id)
            .where(mine, lately, jobs.c.kind == "train")
            .order_by(attempts.c.job_id, attempts.c.number)
        )
        found: dict[str, list[str]] = defaultdict(list)
        for row in self._connection.execute(query):
            found[row.job_id].append(row.id)
        return [TaintedJob(job_id=job_id, attempt_ids=tuple(ids)) for job_id, ids in found.items()]

    def retries(self, job_id: str, *, after_step: int) -> Sequence[str]:
        its = attempts.c.job_id == jobs.c.id
        began = sa.exists().where(its)
        began_before = sa.exists().where(its, attempts.c.start_step <= after_step)
        query = sa.select(jobs.c.id).where(
            jobs.c.retry_of == job_id,
            jobs.c.kind == "train",
            jobs.c.deleted_at_ms.is_(None),
            began | (jobs.c.committed_step > after_step),
            ~began_before,
        )
        return list(self._connection.scalars(query.order_by(jobs.c.id)))

    def readers(self, project_id: str, sha256s: Sequence[str], *, limit: int) -> Sequence[FileReader]:
        found: dict[str, FileReader] = {}
        for first in range(0, len(sha256s), AT_ONCE):
            some = job_inputs.c.sha256.in_(sha256s[first : first + AT_ONCE])
            query = (
                sa.select(jobs.c.id, jobs.c.project_id, job_inputs.c.role, job_inputs.c.sha256)
                .join(jobs, jobs.c.id == job_inputs.c.job_id)
                .where(job_inputs.c.project_id == project_id, some)
                .where(jobs.c.kind.not_in(OF_TRAINING), jobs.c.deleted_at_ms.is_(None))
                .order_by(jobs.c.created_at_ms.desc(), jobs.c.id, job_inputs.c.role)
                .limit(limit)
            )
            for job_id, of_project, role, sha256 in self._connection.execute(query):
                reader = FileReader(job_id=job_id, project_id=of_project, role=role, sha256=sha256)
                found.setdefault(job_id, reader)
        return list(found.values())[:limit]

    def others(self, attempt_id: str, *, within_ms: int, until_ms: int) -> int:
        other = attempts.alias()
        beside = (
            (other.c.node_id == attempts.c.node_id)
            & (other.c.id != attempts.c.id)
            & (other.c.started_at_ms <= until_ms)
            & (other.c.ended_at_ms.is_(None) | (other.c.ended_at_ms >= attempts.c.started_at_ms - within_ms))
        )
        query = (
            sa.select(sa.func.count()).select_from(attempts.join(other, beside)).where(attempts.c.id == attempt_id)
        )
        return int(self._connection.scalar(query) or 0)

    def give_up(self, job_id: str, *, message: str, at_ms: int) -> frozenset[str]:
        mine = (audits.c.job_id == job_id) & (audits.c.sha256.is_not(None) | audits.c.decided_at_ms.is_(None))
        contested = sa.case(
            (audits.c.state == AuditState.CONTESTED, AuditState.UNDECIDED), else_=AuditState.NOT_AUDITED
        )
        is_open = audits.c.decided_at_ms.is_(None)
        values = {
            "sha256": None,
            "state": sa.case((is_open, contested), else_=audits.c.state),
            "message": sa.case((is_open, message), else_=audits.c.message),
            "decided_at_ms": sa.func.coalesce(audits.c.decided_at_ms, at_ms),
        }
        given_up = sa.update(audits).where(mine).values(values).returning(audits.c.claimed_sha256)
        return frozenset(self._connection.scalars(given_up))

    def refutations(self) -> tuple[int, int]:
        latest = sa.func.coalesce(sa.func.max(audits.c.decided_at_ms), 0)
        guilty = sa.select(sa.func.count(), latest).where(audits.c.guilty_machine_id.is_not(None))
        count, at_ms = self._connection.execute(guilty).one()
        return int(count), int(at_ms)

    def bill(self, attempt_ids: Sequence[str], project_id: str) -> None:
        for first in range(0, len(attempt_ids), AT_ONCE):
            some = ledger.c.attempt_id.in_(attempt_ids[first : first + AT_ONCE])
            self._connection.execute(sa.update(ledger).where(some).values(project_id=project_id))


def _takes(row: Any) -> bool:
    return AUDIT_KIND in row.kinds


def _audit(row: Any) -> ReplayAuditRow:
    values = dict(row._mapping)
    values["state"] = AuditState(values["state"])
    values["runs"] = tuple(AuditRun(**run) for run in values["runs"])
    return ReplayAuditRow(**values)
