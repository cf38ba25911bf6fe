"""Take in a job that ended in another project: its row, its checkpoints and its results."""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from giornata.control.access.permissions import require_admin
from giornata.control.audit_log.record import record_call
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.jobs.reading.read_jobs import own_job, read_job
from giornata.control.jobs.submission.prepare_job import missing_file
from giornata.control.jobs.submission.spec_faults import parse_spec
from giornata.control.models.allowed_models import not_allowed_from_outside
from giornata.control.pictures.place_order import place_ended_order
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.import_store import (
    ArtifactToImport,
    CheckpointToImport,
)
from giornata.control.ports.user_queries.records import BlobRecord, JobRecord
from giornata.control.projects.import_sweep import members_of, parse_sweep
from giornata.control.quotas.use import quotas_of
from giornata.control.text_limits import label_faults, text_faults
from giornata.domain.accounts.audit_log import AuditVerb
from giornata.domain.billing.quotas import refusal_of
from giornata.domain.errors import Conflict, Fault
from giornata.domain.generation.picture import ORDER_KINDS
from giornata.domain.jobs.job import IMPORTED_FROM, TERMINAL
from giornata.domain.jobs.sweep import SWEEP_KIND
from giornata.protocol.events import EventType
from giornata.protocol.generation.preprocess import PREPROCESS_KIND
from giornata.protocol.jobs import Job
from giornata.protocol.model import Message
from giornata.protocol.node.joint import joint_key_of
from giornata.protocol.project.project_transfer import ImportJob
from giornata.protocol.specs import input_files, model_key, shape_key_of, total_steps

SEEDED_KINDS = ORDER_KINDS - {PREPROCESS_KIND}
DAY_MS = 86_400_000
IMPORTING = "importing"
"""The phase of an imported job until its pictures and its history are there."""
FIRST_MS = 946_684_800_000
"""The year 2000: no job is older."""


def import_job(ctx: Context, caller: Caller, request: ImportJob) -> tuple[Job, bool]:
    """Insert an ended job with its results; return it, and whether this request made it.

    The same job again is found by its label `imported-from`. Nothing is queued and nothing is billed. Raises
    Forbidden unless the caller owns the project, InvalidInput with every fault, and OverQuota for files that the
    project may not use as adapters.
    """
    require_admin(caller)
    with ctx.store.begin() as tx:
        is_sweep = request.kind == SWEEP_KIND
        # Of a sweep, its jobs are locked first: a job comes before its project.
        found = parse_sweep(tx, caller, request) if is_sweep else parse_spec(request.kind, request.spec)
        tx.submission.hold_project(caller.project_id)  # two equal requests make one job
        there = tx.imported_jobs.find(caller.project_id, request.imported_from)
        if there is not None:
            return read_job(ctx, tx, caller, there), False
        parsed, faults = found
        faults = [*faults, *_faults(ctx, caller, tx, request, parsed)]
        spec = {} if parsed is None else parsed.model_dump(mode="json")
        inputs = {} if parsed is None else input_files(request.kind, spec)
        blobs = _blobs(tx, ctx, caller, request, inputs)
        faults += _missing(request, inputs, blobs)
        faults += not_allowed_from_outside(quotas_of(tx, caller.project_id), _named_files(request))
        if faults:
            raise refusal_of(faults)
        job = _record(ctx, caller, request, spec)
        _insert(tx, ctx, job, request, blobs)
        changes = {"imported_from": request.imported_from, "kind": job.kind}
        record_call(tx, caller, AuditVerb.JOB_IMPORT, job.id, at_ms=ctx.clock.now_ms(), changes=changes)
        return read_job(ctx, tx, caller, job.id), True


def imported_job(tx: Transaction, caller: Caller, job_id: str) -> JobRecord:
    """Return an imported job of the caller's project. Raises NotFound, and Conflict for any other job."""
    job = own_job(tx, caller, job_id)
    if IMPORTED_FROM not in job.labels or job.state not in TERMINAL:
        raise Conflict(f"{job_id} was not imported; only imported jobs take a history from outside")
    return job


def tell_of_import(tx: Transaction, job: JobRecord, *, at_ms: int) -> None:
    """Write the event that ends an import."""
    data = {"imported_from": job.labels[IMPORTED_FROM], "state": job.state}
    tx.events.add(job.id, job.project_id, EventType.JOB_IMPORTED, None, data, at_ms)


def _faults(ctx: Context, caller: Caller, tx: Transaction, request: ImportJob, parsed: Message | None) -> list[Fault]:
    faults = [
        *text_faults("name", request.name),
        *text_faults("error", request.error),
        *label_faults(request.labels),
    ]
    most = ctx.policy.max_order_bytes if request.kind in ORDER_KINDS else ctx.policy.max_spec_bytes
    most *= 3 if request.kind == SWEEP_KIND else 1  # the common part, what differs, and the ids of its jobs
    for where, found in (("spec", request.spec), ("result", request.result)):
        size_bytes = len(json.dumps(found, separators=(",", ":"), ensure_ascii=False).encode())
        if size_bytes > most:
            faults.append(Fault(where=where, message=f"has {size_bytes} bytes as JSON; at most {most} are taken"))
    if parsed is not None and request.kind in SEEDED_KINDS and parsed.model_dump().get("seed") is None:
        faults.append(Fault(where="spec.seed", message="is missing", hint="an order that was placed has a seed"))
    if request.retry_of is not None and tx.job_reads.get(request.retry_of, project_id=caller.project_id) is None:
        hint = "import that job first, or leave the field out"
        faults.append(Fault(where="retry_of", message=f"there is no job {request.retry_of}", hint=hint))
    for where, values in (
        ("checkpoints", [each.step for each in request.checkpoints]),
        ("artifacts", [each.name for each in request.artifacts]),
    ):
        if len(set(values)) < len(values):
            faults.append(Fault(where=where, message="names one twice", hint="name each once"))
    return [*faults, *_instant_faults(ctx, request)]


def _instant_faults(ctx: Context, request: ImportJob) -> Iterable[Fault]:
    started_at = request.started_at or request.created_at
    instants = {"created_at": request.created_at, "started_at": started_at, "ended_at": request.ended_at}
    for where, at in instants.items():
        yield from instant_fault(ctx, where, at, what="at which a job can have been")
    if not request.created_at <= started_at <= request.ended_at:
        yield Fault(where="ended_at", message="a job is created, started and ended in this order")


def instant_fault(ctx: Context, where: str, at: datetime, *, what: str) -> Iterable[Fault]:
    """Yield a fault for an instant of before the year 2000, or of the future."""
    if not FIRST_MS <= ms_of(at) <= ctx.clock.now_ms() + DAY_MS:
        yield Fault(where=where, message=f"{at.isoformat()} is no time {what}")


def _blobs(
    tx: Transaction, ctx: Context, caller: Caller, request: ImportJob, inputs: Mapping[str, str]
) -> Mapping[str, BlobRecord]:
    """Return the files of the job that the project has, which the collector then spares for another while."""
    named = {*_named_files(request).values(), *inputs.values()}
    kept = tx.uploads.touch_blobs(caller.project_id, sorted(named), at_ms=ctx.clock.now_ms()) if named else set()
    return tx.uploads.blobs(caller.project_id, sorted(kept)) if kept else {}


def _missing(request: ImportJob, inputs: Mapping[str, str], blobs: Mapping[str, BlobRecord]) -> list[Fault]:
    faults = [missing_file(role, sha256) for role, sha256 in inputs.items() if sha256 not in blobs]
    return faults + [
        Fault(where=where, message=f"there are no bytes with sha256 {sha256}", hint="upload the file first")
        for where, sha256 in _named_files(request).items()
        if sha256 not in blobs
    ]


def _named_files(request: ImportJob) -> dict[str, str]:
    """Return the sha256 of each checkpoint and result by its place in the request."""
    checkpoints = {f"checkpoints.{number}": each.sha256 for number, each in enumerate(request.checkpoints)}
    return checkpoints | {f"artifacts.{number}": each.sha256 for number, each in enumerate(request.artifacts)}


def _record(ctx: Context, caller: Caller, request: ImportJob, spec: dict[str, Any]) -> JobRecord:
    job_id = ctx.names.new("job")
    return JobRecord(
        id=job_id,
        project_id=caller.project_id,
        kind=request.kind,
        name=request.name or job_id,
        state=request.state,
        spec=spec,
        model_key=model_key(request.kind, spec),
        joint_key=joint_key_of(request.kind, spec),
        shape_key=shape_key_of(request.kind, spec),
        priority=request.priority,
        labels={**request.labels, IMPORTED_FROM: request.imported_from},
        total_steps=len(members_of(spec)) if request.kind == SWEEP_KIND else total_steps(request.kind, spec),
        retry_of=request.retry_of,
        step=request.step,
        committed_step=max((each.step for each in request.checkpoints), default=0),
        phase=IMPORTING if request.history_follows else "",
        error=request.error,
        result=request.result,
        created_at_ms=ms_of(request.created_at),
        started_at_ms=None,  # it took no turn in this queue
        ended_at_ms=ms_of(request.ended_at),
        min_vram_bytes=request.min_vram_bytes,
        created_by=caller.maker,
    )


def _insert(
    tx: Transaction, ctx: Context, job: JobRecord, request: ImportJob, blobs: Mapping[str, BlobRecord]
) -> None:
    tx.submission.add_each([job])
    for role, sha256 in input_files(job.kind, job.spec).items():
        tx.submission.add_input(job, role, sha256)
    now_ms = ctx.clock.now_ms()
    tx.imported_jobs.add_results(
        job,
        attempt_id=ctx.names.new("att"),
        checkpoints=[
            CheckpointToImport(step=each.step, sha256=each.sha256, size_bytes=blobs[each.sha256].size_bytes)
            for each in request.checkpoints
        ],
        artifacts=[
            ArtifactToImport(
                name=each.name,
                sha256=each.sha256,
                size_bytes=blobs[each.sha256].size_bytes,
                media_type=each.media_type,
            )
            for each in request.artifacts
        ],
        cost_micro_usd=request.cost_micro_usd,
        at_ms=now_ms,
    )
    if job.kind == SWEEP_KIND:
        tx.imported_jobs.adopt(job.id, members_of(job.spec), project_id=job.project_id)
    if job.kind in ORDER_KINDS:
        place_ended_order(tx, job)
    if not request.history_follows:
        tell_of_import(tx, job, at_ms=now_ms)


def ms_of(at: datetime) -> int:
    """Return the instant in epoch milliseconds."""
    return round(at.timestamp() * 1000)
