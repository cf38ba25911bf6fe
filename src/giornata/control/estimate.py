"""What a job would take, without submitting it."""

from datetime import timedelta
from typing import Any

from giornata.control.context import Caller, Context
from giornata.control.expect import Expectation, expect
from giornata.control.first_estimate import FirstEstimate, first_estimate
from giornata.control.history import Experience, experience
from giornata.control.instants import instant
from giornata.control.permissions import require_user
from giornata.control.ports.records import JobRecord
from giornata.control.prepare_job import prepare_job
from giornata.control.submit import turn_of
from giornata.protocol.jobs import Estimate, SubmitJob


def estimate(ctx: Context, caller: Caller, request: SubmitJob) -> Estimate:
    """Check the request as `submit` does, and say what is known of such jobs: medians of the project's own.

    A project without such jobs gets ranges from published figures. When the job would start rests on the pace of the
    whole fleet. Nothing is made up: what nobody knows is None, and the words say so. Raises Forbidden, InvalidInput.
    """
    require_user(caller)
    with ctx.store.read() as tx:
        job = prepare_job(ctx, tx, caller, request)
        turn = turn_of(tx, job)
        ahead = tx.job_reads.ahead(kind=job.kind, interrupted=False, priority=job.priority, turn=turn, job_id=job.id)
        known = experience(tx, job)
        run_s = None if known is None or job.total_steps is None else known.run_s(job.total_steps)
        expected = expect(tx, ctx, ctx.policy, job, turn=turn, run_s=run_s)
        figures = _from_published(first_estimate(tx, ctx, job)) if known is None else _from_experience(job, known)
    return Estimate(
        spec=job.spec,
        total_steps=job.total_steps,
        queue_position=ahead + 1,
        **figures,
        **_instants(expected, now_ms=job.created_at_ms),
    )


def _instants(expected: Expectation, *, now_ms: int) -> dict[str, Any]:
    found, now = expected.forecast, instant(now_ms)
    if found is None:
        return {"expectation": expected.words}
    return {
        "expected_start_at": now + timedelta(seconds=found.start_s),
        "expected_end_at": None if found.end_s is None else now + timedelta(seconds=found.end_s),
        "expectation": expected.words,
    }


def _from_published(first: FirstEstimate) -> dict[str, Any]:
    return {
        "step_s_range": first.step_s,
        "run_s_range": first.run_s,
        "cost_micro_usd_range": first.cost_micro_usd,
        "basis": first.basis,
    }


def _from_experience(job: JobRecord, known: Experience) -> dict[str, Any]:
    steps = job.total_steps
    count = "1 finished job" if known.jobs == 1 else f"{known.jobs} finished jobs"
    return {
        "step_s": known.step_s,
        "run_s": None if steps is None else known.run_s(steps),
        "cost_micro_usd": None if steps is None else known.cost_micro_usd(steps),
        "basis": f"median of {count} of this project with the same kind, base model and size of a step",
    }
