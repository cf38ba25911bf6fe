"""Bans of a job from a machine, and strikes against a machine."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.node_queries import machine_store
from giornata.control.ports.node_queries.machine_store import BannedJob, ConnectedNode
from giornata.control.ports.node_queries.work_rows import AttemptRow
from giornata.domain.fleets.starts import NodeStart
from giornata.domain.jobs.backoff import Ban
from giornata.domain.jobs.reasons import Reason
from giornata.store.database.rows import Queries, insert_for
from giornata.store.jobs.claiming import FOR_ANYONE
from giornata.store.machines.node_reads import replaced
from giornata.store.schema import bans, jobs, nodes, strikes

# A ban follows an attempt: such a job was interrupted. So this reads a short range of ix_jobs_queue.
_INTERRUPTED = sa.and_(
    FOR_ANYONE, jobs.c.kind.in_(sa.bindparam("kinds", expanding=True)), jobs.c.interrupted.is_(sa.true())
)
_BAN = (bans.c.machine_id, bans.c.reason, bans.c.at_ms)
# Made once: building a statement costs more than running it.
WAITING: sa.Select[Any] = (
    sa.select(jobs.c.id, jobs.c.project_id, jobs.c.kind, jobs.c.min_vram_bytes, jobs.c.fruitless, *_BAN)
    .join(bans, bans.c.job_id == jobs.c.id)
    .where(_INTERRUPTED)
)
ON_MACHINE: sa.Select[Any] = (
    sa.select(jobs.c.id)
    .join(bans, bans.c.job_id == jobs.c.id)
    .where(_INTERRUPTED, bans.c.machine_id == sa.bindparam("machine"))
)
_OF_JOB = sa.select(*_BAN).where(bans.c.job_id == sa.bindparam("job")).order_by(bans.c.machine_id)
CONNECTED: sa.Select[Any] = sa.select(
    nodes.c.machine_id, nodes.c.project_id, nodes.c.kinds, nodes.c.vram_bytes
).where(
    nodes.c.last_seen_at_ms >= sa.bindparam("since"),
    nodes.c.draining.is_(sa.false()),
    nodes.c.start == NodeStart.DONE,
    ~replaced(),
)
_LIFT = sa.delete(bans).where(
    bans.c.job_id == sa.bindparam("job"), bans.c.machine_id.in_(sa.bindparam("machines", expanding=True))
)


class Bans(Queries, machine_store.Bans):
    def connected(self, *, seen_since_ms: int) -> Sequence[ConnectedNode]:
        rows = self._connection.execute(CONNECTED, {"since": seen_since_ms})
        return [ConnectedNode(**{**row._mapping, "kinds": tuple(row.kinds)}) for row in rows]

    def waiting(self, kinds: Collection[str]) -> Sequence[BannedJob]:
        by_job: dict[str, list[Any]] = defaultdict(list)
        for row in self._connection.execute(WAITING, {"kinds": sorted(kinds)}):
            by_job[row.id].append(row)
        return [_banned_job(rows) for _, rows in sorted(by_job.items())]

    def of_job(self, job_id: str) -> Sequence[Ban]:
        return [_ban(row) for row in self._connection.execute(_OF_JOB, {"job": job_id})]

    def on_machine(self, machine_id: str, kinds: Collection[str]) -> Sequence[str]:
        return sorted(self._connection.scalars(ON_MACHINE, {"machine": machine_id, "kinds": sorted(kinds)}))

    def lift(self, job_id: str, machine_ids: Collection[str]) -> None:
        self._connection.execute(_LIFT, {"job": job_id, "machines": sorted(machine_ids)})

    def ban(self, job_id: str, machine_id: str, reason: Reason, *, at_ms: int) -> None:
        self._connection.execute(
            insert_for(self._dialect_name, bans)
            .values(job_id=job_id, machine_id=machine_id, reason=reason, at_ms=at_ms)
            .on_conflict_do_nothing()
        )

    def strike(self, attempt: AttemptRow, reason: Reason, *, at_ms: int) -> bool:
        struck = self._connection.execute(
            insert_for(self._dialect_name, strikes)
            .values(machine_id=attempt.machine_id, attempt_id=attempt.id, reason=reason, at_ms=at_ms)
            .on_conflict_do_nothing(index_elements=[strikes.c.attempt_id])
            .returning(strikes.c.id)
        )
        return struck.first() is not None


def _banned_job(rows: Sequence[Any]) -> BannedJob:
    """Return one job from its rows, one for each of its bans."""
    names = ("id", "project_id", "kind", "min_vram_bytes", "fruitless")
    of_job = {name: getattr(rows[0], name) for name in names}
    return BannedJob(**of_job, bans=tuple(sorted(map(_ban, rows), key=lambda ban: ban.machine_id)))


def _ban(row: Any) -> Ban:
    return Ban(machine_id=row.machine_id, reason=Reason(row.reason), at_ms=row.at_ms)
