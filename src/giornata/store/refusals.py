"""Why a claim finds nothing. Each statement walks an index of the queue until it has one job, and locks none."""

import functools
from typing import Any

import sqlalchemy as sa

from giornata.control.ports.work_rows import Wanted
from giornata.domain.routing import ENDLESS_BYTES
from giornata.store.claiming import (
    FOR_ANYONE,
    PINNED,
    Form,
    any_queued,
    eligible,
    in_project,
    kinds_of,
    memory_of,
    of_key,
    parameter,
    shape_of,
    vram_parameter,
)
from giornata.store.schema import jobs


def is_claimable(connection: sa.Connection, wanted: Wanted) -> bool:
    """Whether a job is queued that this claim could get."""
    return _any_eligible(connection, wanted, memory_of(wanted))


def why_nothing(connection: sa.Connection, wanted: Wanted) -> str:
    """See `giornata.control.ports.work_store.Jobs`."""
    if is_claimable(connection, wanted):
        return "empty-queue"  # the last one is just being taken by somebody else
    if _any_eligible(connection, wanted, ENDLESS_BYTES):
        return "too-small"
    if _any(connection, _queued, wanted):
        return "banned"
    if wanted.joint_key is not None:
        return "no-such-companion"
    if _any(connection, _for_another, wanted):
        return "for-another"
    return "no-such-kind" if _any(connection, _of_another_kind, wanted) else "empty-queue"


def _any_eligible(connection: sa.Connection, wanted: Wanted, vram_bytes: int) -> bool:
    return _any(connection, _eligible, wanted, vram=vram_bytes)


def _any(connection: sa.Connection, make: Any, wanted: Wanted, **values: int) -> bool:
    shape = shape_of(wanted)
    # What models a node holds decides nothing here.
    form = shape.form._replace(models=0)
    return connection.execute(make(form), {**shape.values, **values}).first() is not None


@functools.lru_cache(maxsize=64)
def _eligible(form: Form) -> sa.Select[Any]:
    fitting = eligible(parameter("machine"), vram_parameter(), _project(form))
    return any_queued(kinds_of(form), [*_key(form), *fitting], machine_id=_may_be_for(form))


@functools.lru_cache(maxsize=64)
def _queued(form: Form) -> sa.Select[Any]:
    return any_queued(kinds_of(form), [*_key(form), *in_project(_project(form))], machine_id=_may_be_for(form))


@functools.lru_cache(maxsize=64)
def _for_another(form: Form) -> sa.Select[Any]:
    """A job of these kinds that is for one machine. There are few of those at any time."""
    conditions = (PINNED, jobs.c.kind.in_(kinds_of(form)), *in_project(_project(form)))
    return sa.select(jobs.c.id).where(*conditions).limit(1)


@functools.lru_cache(maxsize=64)
def _of_another_kind(form: Form) -> sa.Select[Any]:
    return sa.select(jobs.c.id).where(FOR_ANYONE, *in_project(_project(form))).limit(1)


def _key(form: Form) -> list[sa.ColumnElement[bool]]:
    return of_key(parameter("joint") if form.companion else None)


def _project(form: Form) -> sa.BindParameter[str] | None:
    return parameter("project") if form.one_project else None


def _may_be_for(form: Form) -> sa.BindParameter[str] | None:
    """The machine whose own jobs a claim may get: what is for one machine joins nobody's batch."""
    return None if form.companion else parameter("machine")
