"""Find jobs by a text of their name. No index helps, so that each page looks at a bounded number of jobs."""

from typing import Any

import sqlalchemy as sa

from giornata.control.ports.user_queries.user_store import Before
from giornata.store.schema import jobs


def has_in_name(text: str, looked_until: Before) -> list[sa.ColumnElement[bool]]:
    """Return the conditions of jobs with this text in their name, of any case, not older than `looked_until`.

    SQLite ignores the case of ASCII letters only.
    """
    found: list[sa.ColumnElement[bool]] = [jobs.c.name.icontains(text, autoescape=True)]
    if looked_until is not None:
        found.append(sa.tuple_(jobs.c.created_at_ms, jobs.c.id) >= looked_until)
    return found


def last_looked_at(*, project_id: str, kind: str | None, before: Before, most: int) -> sa.Select[Any]:
    """Select the instant and the id of the last of `most` jobs behind `before`; no row when fewer are left."""
    query = sa.select(jobs.c.created_at_ms, jobs.c.id).where(jobs.c.project_id == project_id)
    if kind is not None:
        query = query.where(jobs.c.kind == kind)
    if before is not None:
        query = query.where(sa.tuple_(jobs.c.created_at_ms, jobs.c.id) < before)
    return query.order_by(jobs.c.created_at_ms.desc(), jobs.c.id.desc()).offset(most - 1).limit(1)
