"""Queries about the queue: why a claim finds nothing, and how many jobs wait by what they need of a node.

The statements about a claim walk an index of the queue until they find one job. They lock nothing.
"""

import functools
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any, NamedTuple

import sqlalchemy as sa

from giornata.control.ports.node_queries.work_rows import QueuedDemand, Wanted
from giornata.domain.jobs.routing import ENDLESS_BYTES
from giornata.store.jobs.claiming import (
    FOR_ANYONE,
    PINNED,
    ClaimQueryKey,
    any_queued,
    claim_query,
    eligible,
    in_project,
    kinds_of,
    memory_of,
    not_passed_over,
    of_key,
    parameter,
    vram_parameter,
)
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


def is_claimable(connection: sa.Connection, wanted: Wanted) -> bool:
    """Return True when a job is queued that this claim could get."""
    return _any_eligible(connection, wanted, memory_of(wanted))


def why_nothing(connection: sa.Connection, wanted: Wanted) -> str:
    """Return why a claim finds nothing; see `giornata.control.ports.node_queries.work_store.Jobs`."""
    if is_claimable(connection, wanted):
        return "empty-queue"  # the last one is just being taken by somebody else
    if wanted.passed_over and is_claimable(connection, replace(wanted, passed_over=())):
        return "project-at-ceiling"
    if _any_eligible(connection, wanted, ENDLESS_BYTES):
        return "too-small"
    return "banned" if _any(connection, _queued, wanted) else _why_no_other(connection, wanted)


def _why_no_other(connection: sa.Connection, wanted: Wanted) -> str:
    if wanted.joint_key is not None:
        return "no-such-companion"
    if _any(connection, _for_another, wanted):
        return "for-another"
    return "no-such-kind" if _any(connection, _of_another_kind, wanted) else "empty-queue"


def _any_eligible(connection: sa.Connection, wanted: Wanted, vram_bytes: int) -> bool:
    return _any(connection, _eligible, wanted, vram=vram_bytes)


def _any(connection: sa.Connection, make: Any, wanted: Wanted, **values: int) -> bool:
    query = claim_query(wanted)
    # What models a node holds decides nothing here.
    key = query.key._replace(models=0)
    return connection.execute(make(key), {**query.values, **values}).first() is not None


@functools.lru_cache(maxsize=64)
def _eligible(key: ClaimQueryKey) -> sa.Select[Any]:
    fitting = eligible(parameter("machine"), vram_parameter(), _project(key))
    conditions = [*_joint_key_filter(key), *fitting]
    return any_queued(kinds_of(key), conditions, machine_id=_may_be_for(key), for_anyone=not_passed_over(key))


@functools.lru_cache(maxsize=64)
def _queued(key: ClaimQueryKey) -> sa.Select[Any]:
    return any_queued(
        kinds_of(key), [*_joint_key_filter(key), *in_project(_project(key))], machine_id=_may_be_for(key)
    )


@functools.lru_cache(maxsize=64)
def _for_another(key: ClaimQueryKey) -> sa.Select[Any]:
    """Select a job of these kinds that is for one machine. There are few of those at any time."""
    conditions = (PINNED, jobs.c.kind.in_(kinds_of(key)), *in_project(_project(key)))
    return sa.select(jobs.c.id).where(*conditions).limit(1)


@functools.lru_cache(maxsize=64)
def _of_another_kind(key: ClaimQueryKey) -> sa.Select[Any]:
    return sa.select(jobs.c.id).where(FOR_ANYONE, *in_project(_project(key))).limit(1)


def _joint_key_filter(key: ClaimQueryKey) -> list[sa.ColumnElement[bool]]:
    return of_key(parameter("joint") if key.companion else None)


def _project(key: ClaimQueryKey) -> sa.BindParameter[str] | None:
    return parameter("project") if key.one_project else None


def _may_be_for(key: ClaimQueryKey) -> sa.BindParameter[str] | None:
    """Return the machine whose own jobs a claim may get. A companion gets none: a job for one machine joins nobody's
    batch.
    """
    return None if key.companion else parameter("machine")


class _Asked(NamedTuple):
    """The fields of `QueuedDemand` that make jobs alike, in its order."""

    kind: str
    min_vram_bytes: int
    project_id: str
    banned_machines: frozenset[str] = frozenset()
    only_machine_id: str | None = None


def read_demand(connection: sa.Connection) -> list[QueuedDemand]:
    """Return the queued jobs by their needs; see `giornata.control.ports.node_queries.work_store.Jobs`."""
    counts: Counter[_Asked] = Counter()
    for row in connection.execute(COUNTED):
        counts[_Asked(row.kind, row.min_vram_bytes, row.project_id)] = row.number
    kinds = sorted({asked.kind for asked in counts})
    single = list(connection.execute(BANNED, {"kinds": kinds}))
    for asked in _each_with_bans(single):
        counts[_Asked(asked.kind, asked.min_vram_bytes, asked.project_id)] -= 1
        counts[asked] += 1
    counts.update(_each_with_bans(connection.execute(PINNED_AND_BANS)))
    found = [QueuedDemand(**asked._asdict(), count=count) for asked, count in counts.items() if count > 0]
    return sorted(found, key=lambda each: (each.only_machine_id is not None, -each.count, each.kind, each.project_id))


def _each_with_bans(rows: Any) -> list[_Asked]:
    """Return one for each job. A job has a row for each of its bans, or one without."""
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
