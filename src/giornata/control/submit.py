"""A new job."""

import hashlib
import json
import re
from dataclasses import replace

from giornata.control.context import Caller, Context
from giornata.control.permissions import require_user
from giornata.control.ports.records import JobRecord
from giornata.control.ports.store import Transaction
from giornata.control.prepare_job import missing_file, prepare_job
from giornata.control.read_jobs import read_job
from giornata.control.reserve import reserve
from giornata.domain.errors import Fault, IdempotencyMismatch, InvalidInput, KeyInFlight
from giornata.domain.routing import next_turn
from giornata.protocol.events import EventType
from giornata.protocol.jobs import Job, SubmitJob
from giornata.protocol.specs import input_files

ROUTE = "POST /v1/jobs"
IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,255}", re.ASCII)


def submit(ctx: Context, caller: Caller, request: SubmitJob, idempotency_key: str | None) -> tuple[Job, bool]:
    """Queue a job; it, and whether this request made it.

    With an Idempotency-Key, which is kept for `policy.idempotency_kept_s`, equal requests make one job, also when
    they come at the same moment: the key is written in the job's own transaction. Raises Forbidden, InvalidInput
    with every fault, OverBudget, and IdempotencyMismatch when the key came with another body before.
    """
    require_user(caller)
    if idempotency_key is not None and IDEMPOTENCY_KEY.fullmatch(idempotency_key) is None:
        hint = "a UUID is a good one"
        raise InvalidInput(
            [Fault(where="Idempotency-Key", message="is 1 to 255 visible ASCII characters", hint=hint)]
        )
    with ctx.store.begin() as tx:
        job_id = None if idempotency_key is None else _earlier(ctx, tx, caller, request, idempotency_key)
        if job_id is not None:
            return read_job(ctx, tx, caller, job_id), False
        job = prepare_job(ctx, tx, caller, request)
        if idempotency_key is not None and not _remember(ctx, tx, job, request, idempotency_key):
            # An equal request was committed a moment ago; this transaction has written nothing yet.
            job_id = _earlier(ctx, tx, caller, request, idempotency_key)
            if job_id is None:
                raise KeyInFlight(f"another request with Idempotency-Key {idempotency_key} is just being answered")
            return read_job(ctx, tx, caller, job_id), False
        # After the key: of two equal requests the second one waits there, and reserves nothing.
        enqueue(tx, reserve(tx, ctx, job))
        return read_job(ctx, tx, caller, job.id), True


def enqueue(tx: Transaction, job: JobRecord) -> None:
    """Insert the job, at its turn, with what it reads and the first event of its history. Raises InvalidInput when a
    file that it reads was given up by the collector a moment ago."""
    tx.submission.hold_project(job.project_id)
    tx.submission.add(replace(job, turn=turn_of(tx, job)))
    files = input_files(job.kind, job.spec)
    kept = tx.uploads.touch_blobs(job.project_id, sorted(files.values()), at_ms=job.created_at_ms) if files else set()
    if faults := [missing_file(role, sha256) for role, sha256 in files.items() if sha256 not in kept]:
        raise InvalidInput(faults)
    for role, sha256 in files.items():
        tx.submission.add_input(job, role, sha256)
    data = {"kind": job.kind, "retry_of": job.retry_of}
    tx.events.add(job.id, job.project_id, EventType.JOB_SUBMITTED, None, data, job.created_at_ms)


def turn_of(tx: Transaction, job: JobRecord) -> int:
    """The turn that the job has if it is queued now; see `domain.routing`. One for a single machine takes none."""
    if job.only_machine_id is not None:
        return 0
    return next_turn(tx.submission.turns(job.project_id, kind=job.kind, priority=job.priority))


def request_hash(request: SubmitJob) -> str:
    """What two equal requests have in common, whatever the order of their fields."""
    canonical = json.dumps(request.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _earlier(ctx: Context, tx: Transaction, caller: Caller, request: SubmitJob, key: str) -> str | None:
    found = tx.submission.remembered(caller.project_id, key, ROUTE, since_ms=_since_ms(ctx))
    if found is None:
        return None
    request_sha256, job_id = found
    if request_sha256 != request_hash(request):
        raise IdempotencyMismatch(f"Idempotency-Key {key} was used for {job_id} with another body; use a new key")
    return job_id


def _remember(ctx: Context, tx: Transaction, job: JobRecord, request: SubmitJob, key: str) -> bool:
    return tx.submission.remember(
        job.project_id,
        key,
        ROUTE,
        request_sha256=request_hash(request),
        job_id=job.id,
        at_ms=job.created_at_ms,
        since_ms=_since_ms(ctx),
    )


def _since_ms(ctx: Context) -> int:
    return ctx.clock.now_ms() - round(ctx.policy.idempotency_kept_s * 1000)
