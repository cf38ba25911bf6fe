"""Statements for the end of a lease of pictures: its last bill, and the pictures that it gives back."""

import functools
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from giornata.domain.generation.picture import PictureState
from giornata.domain.jobs.job import JobState
from giornata.domain.jobs.reasons import Reason
from giornata.store.database.rows import among
from giornata.store.money.ledger import amount_micro_usd
from giornata.store.schema import attempts, jobs, ledger, pictures

LEASED = pictures.c.state == PictureState.LEASED
_PAUSED = sa.exists().where(jobs.c.id == pictures.c.order_id, jobs.c.state == JobState.PAUSED)
FREE: Mapping[str, Any] = {
    "state": sa.case((_PAUSED, PictureState.PAUSED), else_=PictureState.QUEUED),
    "lease": None,
}
"""The columns of a picture that no lease has any more."""
UNTIL = sa.bindparam("until", type_=sa.BigInteger)
IS_BEHIND = ledger.c.to_ms < UNTIL
BILLED: Mapping[str, Any] = {
    "to_ms": UNTIL,
    "amount_micro_usd": amount_micro_usd(ledger.c.price_micro_usd_per_hour, UNTIL - ledger.c.from_ms),
}
"""The columns of a bill up to `until`."""


def later(column: sa.Column[int], dialect_name: str) -> sa.ColumnElement[int]:
    """Return `until`, or the column's own value when that is later."""
    return (sa.func.greatest if dialect_name == "postgresql" else sa.func.max)(column, UNTIL)


@functools.cache
def succeeded(dialect_name: str) -> Mapping[str, Any]:
    """Return the columns of an attempt that succeeds at `until`."""
    return {
        "renewed_at_ms": later(attempts.c.renewed_at_ms, dialect_name),
        "ended_at_ms": later(attempts.c.started_at_ms, dialect_name),
        "reason": Reason.SUCCEEDED,
        "message": "",
        "log_tail": "",
    }


@functools.cache
def extend_statement(dialect_name: str) -> sa.Update:
    """A lease has a row for each order, and all of them grow together: a lease that fell silent never comes back."""
    return sa.update(ledger).where(among(dialect_name, ledger.c.attempt_id, "wanted"), IS_BEHIND).values(**BILLED)


@functools.cache
def give_back_statement(dialect_name: str) -> sa.Update:
    """Return the statement that frees all pictures that the leases still have."""
    return sa.update(pictures).where(among(dialect_name, pictures.c.lease, "leases"), LEASED).values(**FREE)
