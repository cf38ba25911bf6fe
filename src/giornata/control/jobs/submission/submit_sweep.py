"""Submit a sweep: one parent job, and a training job for each change of its spec."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from giornata.control.access.permissions import require_write
from giornata.control.audit_log.record import record_call
from giornata.control.budgets.budgets import require_room, without_room
from giornata.control.budgets.history import likely_cost_micro_usd
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.jobs.retry import DATASET_FIELDS, hold_datasets
from giornata.control.jobs.settle_sweep import settle_sweep
from giornata.control.jobs.submission.prepare_job import prepare_job
from giornata.control.jobs.submission.submit import check_key, enqueue_each, remember, remembered
from giornata.control.ports.node_queries.work_rows import NewEvent
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.records import JobRecord
from giornata.control.quotas.use import standing_of
from giornata.domain.accounts.audit_log import AuditVerb
from giornata.domain.billing.budget import reservation_micro_usd
from giornata.domain.billing.quotas import QuotaRequest, over_quota, refusal_of
from giornata.domain.errors import Fault, InvalidInput, OverQuota
from giornata.domain.jobs.job import JobEvent, JobState, next_state
from giornata.domain.jobs.sweep import SWEEP_KIND
from giornata.protocol.events import EventType
from giornata.protocol.jobs import SubmitJob
from giornata.protocol.specs import TrainSpec, canonical_names
from giornata.protocol.sweeps import Change, SubmitSweep, changes_of, swept_fault
from giornata.protocol.training.file_names import output_name_of

ROUTE = "POST /v1/sweeps"
LONGEST_NAME = 120
"""Characters of a sweep's name that the names of its jobs begin with; a number follows."""


def submit_sweep(ctx: Context, caller: Caller, request: SubmitSweep, idempotency_key: str | None) -> tuple[str, bool]:
    """Queue the jobs of a sweep, and return the parent's id and whether this request made it (see `submit`).

    Nothing is made unless every job is sound. Raises Forbidden, InvalidInput with the faults of all jobs, OverBudget,
    OverQuota, and IdempotencyMismatch when the key came with another body before.
    """
    require_write(caller, SWEEP_KIND)
    check_key(idempotency_key)
    with ctx.store.read() as tx:
        earlier = remembered(ctx, tx, caller, request, idempotency_key, route=ROUTE)
        if earlier is not None:
            return earlier, False
        changes, jobs = _prepared(ctx, tx, caller, request)
        likely = [likely_cost_micro_usd(tx, job) for job in jobs]
    parent = _parent(ctx, jobs, changes, likely, request, created_by=caller.maker)
    with ctx.store.begin() as tx:
        if idempotency_key is not None:
            kept = remember(ctx, tx, caller, request, idempotency_key, job_id=parent.id, route=ROUTE)
            if kept != parent.id:  # an equal request was committed a moment ago
                return kept, False
        _add(tx, ctx, parent, jobs, likely)
        told = {"kind": SWEEP_KIND, "priority": parent.priority, "jobs": len(jobs)}
        record_call(tx, caller, AuditVerb.JOB_SUBMIT, parent.id, at_ms=parent.created_at_ms, changes=told)
    return parent.id, True


def _prepared(
    ctx: Context, tx: Transaction, caller: Caller, request: SubmitSweep
) -> tuple[list[Change], list[JobRecord]]:
    """Return the changes and the rows of their jobs. Raises InvalidInput with every fault of every job, once."""
    changes, faults = changes_of(request)
    common, wrong = canonical_names(TrainSpec, request.spec)
    faults += wrong
    common.setdefault("seed", ctx.names.seed())  # the same for all: what differs is what was asked for
    jobs: list[JobRecord] = []
    for number, change in enumerate(changes):
        try:
            asked = _request_of(request, number, {**common, **change})
            jobs.append(prepare_job(ctx, tx, caller, asked, notes_use=False))
        except InvalidInput as refusal:
            found = [swept_fault(request, number, fault, change) for fault in refusal.faults]
            faults += [fault for fault in found if fault not in faults]
    size_bytes = len(json.dumps(changes, separators=(",", ":"), ensure_ascii=False).encode())
    if size_bytes > ctx.policy.max_spec_bytes:
        message = f"have {size_bytes} bytes as JSON; at most {ctx.policy.max_spec_bytes} are taken"
        faults.append(Fault(where="changes", message=message, hint="divide it into several sweeps"))
    if faults:
        raise refusal_of(faults)
    return changes, jobs


def _request_of(request: SubmitSweep, number: int, spec: dict[str, Any]) -> SubmitJob:
    name = None if request.name is None else f"{request.name[:LONGEST_NAME]} {number + 1}"
    if "output_name" in spec and request.name is None:
        spec = {**spec, "output_name": f"{spec['output_name']}-{number + 1}"}
    if request.name is not None:
        spec = {**spec, "output_name": f"{spec.get('output_name') or output_name_of(request.name)}-{number + 1}"}
    return SubmitJob(
        spec=spec,
        name=name,
        priority=request.priority,
        labels=request.labels,
        min_vram_bytes=request.min_vram_bytes,
    )


def _parent(
    ctx: Context,
    jobs: Sequence[JobRecord],
    changes: Sequence[Change],
    likely: Sequence[int | None],
    request: SubmitSweep,
    *,
    created_by: str,
) -> JobRecord:
    """Return the row of the sweep. It is at work from the beginning: no node takes it, and it has no turn."""
    job_id, now_ms = ctx.names.new("job"), jobs[0].created_at_ms
    rows = [
        {"job": job.id, "changes": change, "likely_cost_micro_usd": cost}
        for job, change, cost in zip(jobs, changes, likely, strict=True)
    ]
    return replace(
        jobs[0],
        id=job_id,
        kind=SWEEP_KIND,
        name=request.name or job_id,
        state=next_state(JobState.QUEUED, JobEvent.CLAIM),
        spec={"spec": request.spec, "jobs": rows},
        model_key="",
        joint_key=None,
        shape_key="",
        total_steps=len(jobs),
        started_at_ms=now_ms,
        deadline_at_ms=None if request.deadline_s is None else now_ms + request.deadline_s * 1000,
        budget_micro_usd=request.budget_micro_usd,
        created_by=created_by,
    )


def _add(
    tx: Transaction, ctx: Context, parent: JobRecord, jobs: Sequence[JobRecord], likely: Sequence[int | None]
) -> None:
    """Write the parent and its jobs, and hold back those for which its budget has no room.

    Raises OverBudget, OverQuota unless all jobs have a place in the queue, and InvalidInput when a dataset was
    deleted a moment ago.
    """
    for job in {json.dumps([job.spec.get(field) for field in DATASET_FIELDS]): job for job in jobs}.values():
        hold_datasets(tx, job)
    aside = [reservation_micro_usd(budget=None, estimate=cost) for cost in likely]
    asked = sum(aside) if parent.budget_micro_usd is None else min(parent.budget_micro_usd, sum(aside))
    standing = standing_of(tx, ctx, parent.project_id, hold=True)
    if faults := tuple(over_quota(standing, QuotaRequest(jobs=len(jobs)))):
        raise OverQuota([*faults, *without_room(tx, ctx, parent, asked=asked)])
    require_room(tx, ctx, parent, asked=asked)
    tx.submission.hold_project(parent.project_id)
    tx.submission.add_each([parent])
    data = {"kind": SWEEP_KIND, "retry_of": None}
    submitted = NewEvent(
        job_id=parent.id,
        project_id=parent.project_id,
        type=EventType.JOB_SUBMITTED,
        attempt_number=None,
        data=data,
        at_ms=parent.created_at_ms,
    )
    tx.events.add_each([submitted])
    enqueue_each(
        tx,
        [replace(job, parent_id=parent.id, reserved_micro_usd=cost) for job, cost in zip(jobs, aside, strict=True)],
    )
    settle_sweep(tx, ctx, parent.id, at_ms=parent.created_at_ms)
