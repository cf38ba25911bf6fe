"""What is queued, counted by what it asks of a node."""

from collections import Counter, defaultdict
from typing import Any, NamedTuple

import sqlalchemy as sa

from giornata.control.ports.work_rows import Demand
from giornata.store.claiming import FOR_ANYONE, PINNED
from giornata.store.schema import bans, jobs

_ALIKE = (jobs.c.min_vram_bytes, jobs.c.kind, jobs.c.project_id)


# (memory, kind, project, number) of all that is for any machine; from ix_jobs_demand alone.
COUNTED = sa.select(*_ALIKE, sa.func.count().label("number")).where(FOR_ANYONE).group_by(*_ALIKE)
# Each ban of a queued job that is for any machine. A ban follows an attempt: such a job was interrupted.
BANNED = (
    sa.select(jobs.c.id, *_ALIKE, sa.null().label("only_machine_id"), bans.c.machine_id.label("banned"))
    .join(bans, bans.c.job_id == jobs.c.id)
    .where(FOR_ANYONE, jobs.c.kind.in_(sa.bindparam("kinds", expanding=True)), jobs.c.interrupted.is_(sa.true()))
)
# Each queued job that is for one machine, with its bans.
PINNED_AND_BANS = (
    sa.select(jobs.c.id, *_ALIKE, jobs.c.only_machine_id, bans.c.machine_id.label("banned"))
    .join(bans, bans.c.job_id == jobs.c.id, isouter=True)
    .where(PINNED)
)


class _Asked(NamedTuple):
    """The fields of `Demand` that make jobs alike, in its order."""

    kind: str
    min_vram_bytes: int
    project_id: str
    banned_machines: frozenset[str] = frozenset()
    only_machine_id: str | None = None


def read_demand(connection: sa.Connection) -> list[Demand]:
    """See `giornata.control.ports.work_store.Jobs`."""
    counts: Counter[_Asked] = Counter()
    for row in connection.execute(COUNTED):
        counts[_Asked(row.kind, row.min_vram_bytes, row.project_id)] = row.number
    kinds = sorted({asked.kind for asked in counts})
    single = list(connection.execute(BANNED, {"kinds": kinds}))
    for asked in _each_with_bans(single):
        counts[_Asked(asked.kind, asked.min_vram_bytes, asked.project_id)] -= 1
        counts[asked] += 1
    counts.update(_each_with_bans(connection.execute(PINNED_AND_BANS)))
    found = [Demand(**asked._asdict(), count=count) for asked, count in counts.items() if count > 0]
    return sorted(found, key=lambda each: (each.only_machine_id is not None, -each.count, each.kind, each.project_id))


def _each_with_bans(rows: Any) -> list[_Asked]:
    """One for each job; a row for each of its bans, or one without."""
    by_job: dict[str, list[Any]] = defaultdict(list)
    for row in rows:
        by_job[row.id].append(row)
    return [
        _Asked(
            kind=of_job[0].kind,
            min_vram_bytes=of_job[0].min_vram_bytes,
            project_id=of_job[0].project_id,
            banned_machines=frozenset(row.banned for row in of_job if row.banned is not None),
            only_machine_id=of_job[0].only_machine_id,
        )
        for of_job in by_job.values()
    ]
