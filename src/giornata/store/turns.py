"""What a new job's turn is worked out from, and who stands before a job. Each value is the head of an index."""

from typing import Any

import sqlalchemy as sa

from giornata.domain.routing import RECENT, Turns
from giornata.store.claiming import FOR_ANYONE, QUEUED
from giornata.store.schema import jobs

HANDED_OUT = sa.and_(jobs.c.started_at_ms.is_not(None), jobs.c.only_machine_id.is_(None))
# Written as in the index, or SQLite does not see that the index serves.
HAS_A_TURN = sa.and_(sa.or_(QUEUED, jobs.c.started_at_ms.is_not(None)), jobs.c.only_machine_id.is_(None))


def turns_statement(*, project_id: str, kind: str, priority: int) -> sa.Select[Any]:
    """Rows of (what, turn), where `what` is a field of `Turns`: at most RECENT and two."""
    alike = (jobs.c.kind == kind, jobs.c.priority == priority)
    arms = {
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
            .where(HAS_A_TURN, jobs.c.project_id == project_id, *alike)
            .order_by(jobs.c.turn.desc())
            .limit(sa.literal_column("1"))
        ),
    }
    ctes = [(name, arm.cte(f"{name}_turns")) for name, arm in arms.items()]
    rows = (sa.select(sa.literal_column(f"'{name}'").label("what"), cte.c.turn) for name, cte in ctes)
    found = sa.union_all(*rows).subquery("found")
    return sa.select(found.c.what, found.c.turn)


def read_turns(connection: sa.Connection, *, project_id: str, kind: str, priority: int) -> Turns:
    """See `giornata.control.ports.user_store.Submission`."""
    found: dict[str, list[int]] = {"head": [], "recent": [], "own": []}
    for what, turn in connection.execute(turns_statement(project_id=project_id, kind=kind, priority=priority)):
        found[what].append(turn)
    return Turns(
        head=next(iter(found["head"]), None), recent=tuple(found["recent"]), own=next(iter(found["own"]), None)
    )


def before_statement(*, kind: str, interrupted: bool, priority: int, turn: int, job_id: str) -> sa.Select[Any]:
    """The number of queued jobs for any machine that stand before one that is queued like this."""
    alike = jobs.c.interrupted.is_(sa.true() if interrupted else sa.false())
    sooner = alike & (jobs.c.priority == priority) & (sa.tuple_(jobs.c.turn, jobs.c.id) < (turn, job_id))
    first = sooner | (alike & (jobs.c.priority > priority))
    if not interrupted:
        first |= jobs.c.interrupted.is_(sa.true())
    return sa.select(sa.func.count()).select_from(jobs).where(FOR_ANYONE, jobs.c.kind == kind, first)
