"""Queries for turns: the values behind a new job's turn, and the jobs before it. Each value heads an index."""

import functools
from typing import Any

import sqlalchemy as sa

from giornata.domain.jobs.routing import RECENT, Turns
from giornata.store.jobs.claiming import FOR_ANYONE, QUEUED, Text
from giornata.store.schema import jobs

Number = int | sa.ColumnElement[int]
HANDED_OUT = sa.and_(jobs.c.started_at_ms.is_not(None), jobs.c.only_machine_id.is_(None))
# Written as in the index, or SQLite does not see that the index serves.
HAS_A_TURN = sa.and_(sa.or_(QUEUED, jobs.c.started_at_ms.is_not(None)), jobs.c.only_machine_id.is_(None))


_kind, _priority = sa.bindparam("kind", type_=sa.String()), sa.bindparam("priority", type_=sa.Integer())


def _turns() -> sa.Select[Any]:
    alike = (jobs.c.kind == _kind, jobs.c.priority == _priority)
    branches = {
        "head": (
            sa.select(jobs.c.turn)
            .where(FOR_ANYONE, *alike, jobs.c.interrupted.is_(sa.false()))
            .order_by(jobs.c.turn, jobs.c.id)
            .limit(sa.literal_column("1"))
        ),
        "recent": (
            sa.select(jobs.c.turn)
            .where(HANDED_OUT, *alike)
            .order_by(jobs.c.started_at_ms.desc(), jobs.c.turn.desc())
            .limit(sa.literal_column(str(RECENT)))
        ),
        "own": (
            sa.select(jobs.c.turn)
            .where(HAS_A_TURN, jobs.c.project_id == sa.bindparam("project"), *alike)
            .order_by(jobs.c.turn.desc())
            .limit(sa.literal_column("1"))
        ),
    }
    ctes = [(name, branch.cte(f"{name}_turns")) for name, branch in branches.items()]
    rows = (sa.select(sa.literal_column(f"'{name}'").label("what"), cte.c.turn) for name, cte in ctes)
    found = sa.union_all(*rows).subquery("found")
    return sa.select(found.c.what, found.c.turn)


# Rows of (what, turn), where `what` is a field of `Turns`: at most RECENT and two.
TURNS = _turns()


def read_turns(connection: sa.Connection, *, project_id: str, kind: str, priority: int) -> Turns:
    """Return the turns behind a new job's turn; see `giornata.control.ports.user_queries.user_store.Submission`."""
    found: dict[str, list[int]] = {"head": [], "recent": [], "own": []}
    for what, turn in connection.execute(TURNS, {"project": project_id, "kind": kind, "priority": priority}):
        found[what].append(turn)
    return Turns(
        head=next(iter(found["head"]), None), recent=tuple(found["recent"]), own=next(iter(found["own"]), None)
    )


@functools.cache
def before_statement(*, interrupted: bool) -> sa.Select[Any]:
    """Select the number of queued jobs for any machine that stand before one of a kind, priority, turn and id."""
    turn, job_id = sa.bindparam("turn", type_=sa.BigInteger()), sa.bindparam("job", type_=sa.String())
    where = before(kind=_kind, interrupted=interrupted, priority=_priority, turn=turn, job_id=job_id)
    return sa.select(sa.func.count()).select_from(jobs).where(*where)


@functools.cache
def between_statement() -> sa.Select[Any]:
    """Select the ids of the jobs for any machine, never interrupted, of a kind and priority, from one place to
    another.
    """
    place = sa.tuple_(jobs.c.turn, jobs.c.id)
    first, last = (
        sa.tuple_(sa.bindparam(turn, type_=sa.BigInteger()), sa.bindparam(job_id, type_=sa.String()))
        for turn, job_id in (("turn", "job"), ("last_turn", "last_job"))
    )
    alike = (jobs.c.kind == _kind, jobs.c.interrupted.is_(sa.false()), jobs.c.priority == _priority)
    found = sa.select(jobs.c.id).where(FOR_ANYONE, *alike, place >= first, place <= last)
    return found.order_by(jobs.c.turn, jobs.c.id)


def before(
    *, kind: Text, interrupted: bool, priority: Number, turn: Number, job_id: Text
) -> tuple[sa.ColumnElement[bool], ...]:
    """Return the conditions for jobs that stand before one of this kind, priority, turn and id."""
    alike = jobs.c.interrupted.is_(sa.true() if interrupted else sa.false())
    sooner = alike & (jobs.c.priority == priority) & (sa.tuple_(jobs.c.turn, jobs.c.id) < sa.tuple_(turn, job_id))
    first = sooner | (alike & (jobs.c.priority > priority))
    if not interrupted:
        first |= jobs.c.interrupted.is_(sa.true())
    return (FOR_ANYONE, jobs.c.kind == kind, first)
