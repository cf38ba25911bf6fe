"""What a job would take, without submitting it."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from giornata.control.context import Caller, Context
from giornata.control.permissions import require_user
from giornata.control.ports.records import FinishedRecord, JobRecord
from giornata.control.prepare_job import prepare_job
from giornata.control.submit import turn_of
from giornata.domain.money import cost_micro_usd
from giornata.protocol.jobs import Estimate, SubmitJob

LOOKED_AT = 50
# What decides how much work one step of training is, besides the base model.
STEP_SIZE = (
    "resolution",
    "train_batch_size",
    "gradient_accumulation_steps",
    "gradient_checkpointing",
    "train_text_encoder",
    "with_prior_preservation",
    "prior_prediction",
    "mixed_precision",
    "compile",
)


def estimate(ctx: Context, caller: Caller, request: SubmitJob) -> Estimate:
    """Check the request as `submit` does, and say what is known of such jobs: medians of the project's own.

    Nothing is made up: what no finished job tells is None, and `basis` says so. Raises Forbidden, InvalidInput.
    """
    require_user(caller)
    with ctx.store.read() as tx:
        job = prepare_job(ctx, tx, caller, request)
        ahead = tx.job_reads.ahead(
            kind=job.kind,
            interrupted=False,
            priority=job.priority,
            turn=turn_of(tx, job),
            job_id=job.id,
        )
        finished = tx.job_reads.finished(
            project_id=caller.project_id, kind=job.kind, model_key=job.model_key, limit=LOOKED_AT
        )
    alike = [record for record in finished if _alike(record.spec, job.spec) and _step_s(record) is not None]
    return _from_history(job, alike, queue_position=ahead + 1)


def _from_history(job: JobRecord, alike: Sequence[FinishedRecord], *, queue_position: int) -> Estimate:
    known = Estimate(
        spec=job.spec,
        total_steps=job.total_steps,
        queue_position=queue_position,
        basis="no finished job of this project is like it: same kind, base model and size of a step",
    )
    if not alike:
        return known
    step_s = median(value for record in alike if (value := _step_s(record)) is not None)
    start_s = median(_start_s(record) for record in alike)
    price = round(median(record.price_micro_usd_per_hour for record in alike))
    run_s = None if job.total_steps is None else start_s + step_s * job.total_steps
    cost = None if run_s is None else cost_micro_usd(price_micro_usd_per_hour=price, billed_ms=round(run_s * 1000))
    count = "1 finished job" if len(alike) == 1 else f"{len(alike)} finished jobs"
    basis = f"median of {count} of this project with the same kind, base model and size of a step"
    return known.model_copy(update={"step_s": step_s, "run_s": run_s, "cost_micro_usd": cost, "basis": basis})


def _alike(spec: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(spec.get(name) == other.get(name) for name in STEP_SIZE)


def _step_s(record: FinishedRecord) -> float | None:
    """Seconds from the end of the first step to the end of the attempt, for each step between."""
    steps = record.last_step - record.start_step - 1
    if record.first_step_at_ms is None or steps < 1 or record.ended_at_ms <= record.first_step_at_ms:
        return None
    return (record.ended_at_ms - record.first_step_at_ms) / 1000 / steps


def _start_s(record: FinishedRecord) -> float:
    """Seconds before the first step, less that step."""
    first_ms = record.started_at_ms if record.first_step_at_ms is None else record.first_step_at_ms
    return max(0.0, (first_ms - record.started_at_ms) / 1000 - (_step_s(record) or 0.0))
