"""Money: one row for each interval in which an attempt is alive."""

import sqlalchemy as sa

from giornata.control.ports.work_store import AttemptRow, JobRow
from giornata.domain.money import cost_micro_usd
from giornata.store.schema import ledger


class Ledger:
    """See `giornata.control.ports.work_store.Ledger`."""

    def __init__(self, connection: sa.Connection, dialect_name: str) -> None:
        self._connection = connection
        self._dialect_name = dialect_name

    def open(self, job: JobRow, attempt: AttemptRow, *, at_ms: int) -> None:
        latest = sa.select(sa.func.coalesce(sa.func.max(ledger.c.seq), -1) + 1).where(
            ledger.c.attempt_id == attempt.id
        )
        self._connection.execute(
            sa.insert(ledger).values(
                attempt_id=attempt.id,
                seq=latest.scalar_subquery(),
                project_id=job.project_id,
                job_id=job.id,
                from_ms=at_ms,
                to_ms=at_ms,
                price_micro_usd_per_hour=attempt.price_micro_usd_per_hour,
                amount_micro_usd=0,
            )
        )

    def extend(self, attempt_id: str, *, to_ms: int) -> None:
        last = self._connection.execute(
            sa.select(ledger).where(ledger.c.attempt_id == attempt_id).order_by(ledger.c.seq.desc()).limit(1)
        ).one()
        if to_ms <= last.to_ms:
            return
        amount = cost_micro_usd(
            price_micro_usd_per_hour=last.price_micro_usd_per_hour, billed_ms=to_ms - last.from_ms
        )
        self._connection.execute(
            sa.update(ledger)
            .where(ledger.c.attempt_id == attempt_id, ledger.c.seq == last.seq)
            .values(to_ms=to_ms, amount_micro_usd=amount)
        )
