"""Money: one row for each interval in which an attempt is alive, and who shared its node meanwhile.

The rows know nothing of each other, so that no beat of one attempt waits for another's: what each pays of the price
is worked out when it is read (`store.bills`).
"""

import functools
from collections.abc import Sequence

import sqlalchemy as sa

from giornata.control.ports.work_rows import AttemptRow, JobRow
from giornata.domain.money import MS_PER_HOUR
from giornata.store.row_list import among
from giornata.store.schema import ledger


def amount_micro_usd(price: sa.ColumnElement[int], billed_ms: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    """`domain.money.cost_micro_usd` in SQL: a heartbeat need not read the row first. A test compares the two.

    Whole hours are apart, so that no product leaves 64 bits.
    """
    rest_ms = billed_ms % MS_PER_HOUR
    return price * (billed_ms // MS_PER_HOUR) + (price * rest_ms + MS_PER_HOUR // 2) // MS_PER_HOUR


# Made once: building a statement costs more than running it.
_LAST = sa.select(sa.func.max(ledger.c.seq)).where(ledger.c.attempt_id == sa.bindparam("wanted")).scalar_subquery()
_OPEN = sa.insert(ledger).values(
    {
        **{column.name: sa.bindparam(column.name) for column in ledger.c},
        "seq": sa.func.coalesce(_LAST, -1) + 1,
        "amount_micro_usd": 0,
    }
)


class Ledger:
    """See `giornata.control.ports.work_store.Ledger`."""

    def __init__(self, connection: sa.Connection, dialect_name: str) -> None:
        self._connection = connection
        self._dialect_name = dialect_name

    def open_each(self, begun: Sequence[tuple[JobRow, AttemptRow]], *, at_ms: int) -> None:
        if not begun:
            return
        rows = [
            {
                "wanted": attempt.id,
                "attempt_id": attempt.id,
                "project_id": job.project_id,
                "job_id": job.id,
                "from_ms": at_ms,
                "to_ms": at_ms,
                "price_micro_usd_per_hour": attempt.price_micro_usd_per_hour,
            }
            for job, attempt in begun
        ]
        self._connection.execute(_OPEN, rows)

    def extend_each(self, attempt_ids: Sequence[str], *, to_ms: int) -> None:
        if not attempt_ids:
            return
        values = {"wanted": list(attempt_ids), "until": to_ms}
        self._connection.execute(_extend(self._dialect_name), values)


@functools.cache
def _extend(dialect_name: str) -> sa.Update:
    later = ledger.alias("later")
    latest = ~sa.exists().where(later.c.attempt_id == ledger.c.attempt_id, later.c.seq > ledger.c.seq)
    until = sa.bindparam("until", type_=sa.BigInteger)
    billed_ms = until - ledger.c.from_ms
    return (
        sa.update(ledger)
        .where(among(dialect_name, ledger.c.attempt_id, "wanted"), latest, ledger.c.to_ms < until)
        .values(to_ms=until, amount_micro_usd=amount_micro_usd(ledger.c.price_micro_usd_per_hour, billed_ms))
    )
