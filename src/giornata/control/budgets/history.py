"""Statistics of finished jobs: how fast jobs like this one were, and how often attempts are interrupted."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from giornata.control.context import Context
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.records import FinishedRecord, JobRecord
from giornata.domain.billing.money import cost_micro_usd
from giornata.domain.jobs.attempt import mean_time_between_interruptions_s

LOOKED_AT = 50
WINDOW_MS = 7 * 24 * 3_600_000
# Every heartbeat asks, and a week is not another one after ten seconds.
KEPT_MS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceHistory:
    """Medians over `jobs` finished jobs with steps of the same shape."""

    jobs: int
    step_s: float
    start_s: float  # from the claim to the beginning of the first step
    price_micro_usd_per_hour: int

    def run_s(self, steps: int) -> float:
        """Return the seconds that so many steps take, with the start."""
        return self.start_s + self.step_s * steps

    def cost_micro_usd(self, steps: int) -> int:
        """Return the cost of so many steps, in micro-dollars."""
        billed_ms = round(self.run_s(steps) * 1000)
        return cost_micro_usd(price_micro_usd_per_hour=self.price_micro_usd_per_hour, billed_ms=billed_ms)


def experience(tx: Transaction, job: JobRecord) -> PaceHistory | None:
    """Return medians of the project's latest jobs like this one; None when there was none."""
    finished = tx.job_reads.finished(
        project_id=job.project_id, kind=job.kind, shape_key=job.shape_key, limit=LOOKED_AT
    )
    return of_records(finished)


def of_records(finished: Sequence[FinishedRecord]) -> PaceHistory | None:
    """Return the medians of the records that made at least two steps; None when there is none."""
    known = [record for record in finished if _step_s(record) is not None]
    if not known:
        return None
    return PaceHistory(
        jobs=len(known),
        step_s=median(value for record in known if (value := _step_s(record)) is not None),
        start_s=median(_start_s(record) for record in known),
        price_micro_usd_per_hour=round(median(record.price_micro_usd_per_hour for record in known)),
    )


def likely_cost_micro_usd(tx: Transaction, job: JobRecord) -> int | None:
    """Return the cost of the job if it is like the ones before it; None when nothing is known."""
    known = experience(tx, job)
    return None if known is None or job.total_steps is None else known.cost_micro_usd(job.total_steps)


def _step_s(record: FinishedRecord) -> float | None:
    """Return the seconds of a step: from the end of the first step to the end of the attempt, shared by the steps
    between.
    """
    steps = record.last_step - record.start_step - 1
    if record.first_step_at_ms is None or steps < 1 or record.ended_at_ms <= record.first_step_at_ms:
        return None
    return (record.ended_at_ms - record.first_step_at_ms) / 1000 / steps


def _start_s(record: FinishedRecord) -> float:
    """Return the seconds before the first step, less that step."""
    first_ms = record.started_at_ms if record.first_step_at_ms is None else record.first_step_at_ms
    return max(0.0, (first_ms - record.started_at_ms) / 1000 - (_step_s(record) or 0.0))


def fleet_mtbi_s(tx: Transaction, ctx: Context, *, at_ms: int) -> float:
    """Return the mean time between interruptions over the latest attempts of the last week, in seconds; up to 10 s
    old.
    """
    remembered_s = ctx.memory.mtbi_s(at_ms=at_ms, kept_ms=KEPT_MS)
    if remembered_s is not None:
        return remembered_s
    run_ms, interruptions = tx.attempts.history(since_ms=at_ms - WINDOW_MS)
    mtbi_s = mean_time_between_interruptions_s(observed_run_s=run_ms / 1000, interruptions=interruptions)
    ctx.memory.remember_mtbi(mtbi_s, at_ms=at_ms)
    return mtbi_s
