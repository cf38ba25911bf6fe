"""Submit a new job to the queue."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from giornata.control.access.permissions import require_write
from giornata.control.audit_log.record import actor_of, audit_row
from giornata.control.budgets.budgets import budget_faults, reserve
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.jobs.reading.job_reply import job_reply, waiting_because
from giornata.control.jobs.reading.read_jobs import read_job
from giornata.control.jobs.submission.prepare_job import missing_file, prepare_job
from giornata.control.jobs.submission.quota_faults import quota_request
from giornata.control.jobs.submission.spec_faults import ParsedSpec
from giornata.control.pictures.order_files import BASE_SHA256, hold_base, hold_files
from giornata.control.pictures.place_order import place_orders
from giornata.control.ports.node_queries.work_rows import NewEvent
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.records import JobRecord
from giornata.control.quotas.ceilings import with_ceiling
from giornata.control.quotas.use import standing_of
from giornata.domain.accounts.audit_log import AuditVerb
from giornata.domain.billing.quotas import NO_QUOTAS, UNLIMITED, Quotas, QuotaStanding, with_request
from giornata.domain.errors import Fault, GiornataError, IdempotencyMismatch, InvalidInput, KeyInFlight, OverQuota
from giornata.domain.generation.picture import ORDER_KINDS
from giornata.domain.jobs.routing import Turns, next_turn
from giornata.protocol.events import EventType
from giornata.protocol.jobs import Job, SubmitJob
from giornata.protocol.model import Message
from giornata.protocol.specs import input_files

ROUTE = "POST /v1/jobs"
IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,255}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A request for a job, with its caller and key.

    `parsed_spec` is the spec where `parse_spec` was asked already.
    """

    caller: Caller
    request: SubmitJob
    idempotency_key: str | None = None
    parsed_spec: ParsedSpec | None = None


# The job, and whether this request made it.
Submitted = tuple[Job, bool]


def submit(ctx: Context, caller: Caller, request: SubmitJob, idempotency_key: str | None) -> Submitted:
    """Queue a job; return it, and whether this request made it.

    With an Idempotency-Key, which is kept for `policy.idempotency_kept_s`, equal requests make one job, also when
    they come at the same moment: the key is written in the job's own transaction. Raises Forbidden, InvalidInput
    with every fault, OverQuota, OverBudget, and IdempotencyMismatch when the key came with another body before.
    """
    (answer,) = submit_each(ctx, [JobRequest(caller=caller, request=request, idempotency_key=idempotency_key)])
    if isinstance(answer, GiornataError):
        raise answer
    return answer


def submit_each(ctx: Context, asked: Sequence[JobRequest]) -> list[Submitted | GiornataError]:
    """Submit one after the other in one transaction, as `submit` does. No two of one project have the same key.

    Raises what `submit` raises when that was found out after something had been written: then nothing of all is.
    """
    # In the order of projects and keys: two who hold several must not wait for one another.
    order = sorted(enumerate(asked), key=lambda each: (each[1].caller.project_id, each[1].idempotency_key or ""))
    answers: dict[int, Submitted | GiornataError] = {}
    with ctx.store.begin() as tx:
        for project_id, of_it in groupby(order, key=lambda each: each[1].caller.project_id):
            answers |= _submit_to(tx, ctx, project_id, dict(of_it))
        said = ((asked[number].caller, answer) for number, answer in answers.items())
        made = [(caller, it[0]) for caller, it in said if not isinstance(it, GiornataError) and it[1]]
        _record_each(tx, made, at_ms=ctx.clock.now_ms())
    return [answers[number] for number in range(len(asked))]


def _record_each(tx: Transaction, made: Sequence[tuple[Caller, Job]], *, at_ms: int) -> None:
    """Insert a row of the audit log for each new job, all in one statement."""
    if not made:
        return
    tx.audit_log.add_each(
        [
            audit_row(
                actor_of(caller),
                AuditVerb.JOB_SUBMIT,
                job.id,
                at_ms=at_ms,
                project_id=caller.project_id,
                changes={"kind": job.kind, "priority": job.priority},
            )
            for caller, job in made
        ]
    )


def _submit_to(
    tx: Transaction, ctx: Context, project_id: str, asked: Mapping[int, JobRequest]
) -> Mapping[int, Submitted | GiornataError]:
    project = tx.projects.get(project_id)
    # Before the first key is written: of two requests at once the second one counts what the first has made.
    standing = standing_of(tx, ctx, project_id, project=project or NO_QUOTAS, hold=True)
    answers: dict[int, Submitted | GiornataError] = {}
    new: dict[int, JobRecord] = {}
    for number, each in asked.items():
        try:
            found = _prepared(ctx, tx, each, standing)
        except GiornataError as error:  # nothing was written for it yet
            answers[number] = error
            continue
        if not isinstance(found, JobRecord):
            answers[number] = found
            continue
        if standing is not UNLIMITED:
            standing = with_request(standing, quota_request(found))
        # After the key: of two equal requests the second one waits there, and reserves nothing.
        new[number] = reserve(tx, ctx, found, project=project)
        if project is not None and project.budget_micro_usd is not None:
            # What it set aside counts for the next one from here on.
            (reply,) = _fresh(ctx, tx, [enqueue(tx, new.pop(number))], project)
            answers[number] = (reply, True)
    queued = enqueue_each(tx, list(new.values())) if new else []
    replies = [(job, True) for job in _fresh(ctx, tx, queued, project)]
    return {**answers, **dict(zip(new, replies, strict=True))}


def _prepared(ctx: Context, tx: Transaction, asked: JobRequest, standing: QuotaStanding) -> JobRecord | Submitted:
    """Return the job that is to be queued, its key stored; or the one that the key stands for already."""
    caller, request, key = asked.caller, asked.request, asked.idempotency_key
    require_write(caller, request.kind)
    check_key(key)
    job_id = remembered(ctx, tx, caller, request, key)
    if job_id is not None:
        return read_job(ctx, tx, caller, job_id), False
    job = _prepared_within(ctx, tx, asked, standing)
    if key is not None:
        job_id = remember(ctx, tx, caller, request, key, job_id=job.id)
        if job_id != job.id:  # an equal request was committed a moment ago; nothing was written for this one
            return read_job(ctx, tx, caller, job_id), False
    return job


def _prepared_within(ctx: Context, tx: Transaction, asked: JobRequest, standing: QuotaStanding) -> JobRecord:
    """Return the row of the new job, as `prepare_job` does. A refusal for quotas names budgets without room, too."""
    caller, request, parsed = asked.caller, asked.request, asked.parsed_spec
    try:
        return prepare_job(ctx, tx, caller, request, parsed_spec=parsed, standing=standing)
    except OverQuota as refusal:
        job = prepare_job(ctx, tx, caller, request, parsed_spec=parsed, notes_use=False, standing=UNLIMITED)
        raise OverQuota([*refusal.faults, *budget_faults(tx, ctx, job)]) from None


def check_key(key: str | None) -> None:
    """Raises InvalidInput for an Idempotency-Key that cannot be one."""
    if key is not None and IDEMPOTENCY_KEY.fullmatch(key) is None:
        hint = "a UUID is a good one"
        raise InvalidInput(
            [Fault(where="Idempotency-Key", message="is 1 to 255 visible ASCII characters", hint=hint)]
        )


def enqueue(tx: Transaction, job: JobRecord) -> JobRecord:
    """Enqueue one job, as `enqueue_each` does."""
    return enqueue_each(tx, [job])[0]


def enqueue_each(tx: Transaction, jobs: Sequence[JobRecord]) -> list[JobRecord]:
    """Insert jobs of one project, each at its turn, with what they read and the first event of their history.

    Raises InvalidInput when a file that one reads was given up by the collector a moment ago.
    """
    tx.submission.hold_project(jobs[0].project_id)
    queued = _at_their_turns(tx, jobs)
    tx.submission.add_each(queued)
    place_orders(tx, queued)
    for job in queued:
        if job.kind in ORDER_KINDS:
            hold_files(tx, job)
        else:
            _add_files(tx, job)
            if job.spec.get(BASE_SHA256) is not None:
                hold_base(tx, job, job.spec[BASE_SHA256])
    tx.events.add_each(
        [
            NewEvent(
                job_id=job.id,
                project_id=job.project_id,
                type=EventType.JOB_SUBMITTED,
                attempt_number=None,
                data={"kind": job.kind, "retry_of": job.retry_of},
                at_ms=job.created_at_ms,
            )
            for job in queued
        ]
    )
    return queued


def _add_files(tx: Transaction, job: JobRecord) -> None:
    files = input_files(job.kind, job.spec)
    kept = tx.uploads.touch_blobs(job.project_id, sorted(files.values()), at_ms=job.created_at_ms) if files else set()
    if faults := [missing_file(role, sha256) for role, sha256 in files.items() if sha256 not in kept]:
        raise InvalidInput(faults)
    for role, sha256 in files.items():
        tx.submission.add_input(job, role, sha256)


def _at_their_turns(tx: Transaction, jobs: Sequence[JobRecord]) -> list[JobRecord]:
    """Return the jobs with the turns that they have if they are queued now; see `domain.jobs.routing`. The project is
    held.

    A job for a single machine takes none.
    """
    known: dict[tuple[str, int], Turns] = {}
    queued = []
    for job in jobs:
        turn, alike = 0, (job.kind, job.priority)
        # Each picture of an order has a turn of its own.
        if job.only_machine_id is None and job.kind not in ORDER_KINDS:
            if alike not in known:
                known[alike] = tx.submission.turns(job.project_id, kind=job.kind, priority=job.priority)
            turn = next_turn(known[alike])
            known[alike] = known[alike].with_one_more(turn)
        queued.append(replace(job, turn=turn))
    return queued


def turn_of(tx: Transaction, job: JobRecord) -> int:
    """Return the turn that the job has if it is queued now."""
    return _at_their_turns(tx, [job])[0].turn


def _fresh(ctx: Context, tx: Transaction, jobs: Sequence[JobRecord], quotas: Quotas | None) -> list[Job]:
    """Return replies that tell of jobs of one project which this transaction queues."""
    if not jobs:
        return []
    seen_since_ms = ctx.clock.now_ms() - round(ctx.policy.node_gone_after_s * 1000)
    views = tx.job_reads.queue_views(jobs, seen_since_ms=seen_since_ms)
    if quotas is not None and quotas.max_running_jobs is not None:
        views = [with_ceiling(tx, ctx, job, view) for job, view in zip(jobs, views, strict=True)]
    return [
        job_reply(job, (), names=None, waiting_because=waiting_because(job, view, names=None))
        for job, view in zip(jobs, views, strict=True)
    ]


def request_hash(request: Message) -> str:
    """Return the hash that equal requests share, whatever the order of their fields."""
    canonical = json.dumps(request.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def remembered(
    ctx: Context, tx: Transaction, caller: Caller, request: Message, key: str | None, *, route: str = ROUTE
) -> str | None:
    """Return the job that an earlier request with this key made; None if there is none. Raises IdempotencyMismatch
    when that was another request.
    """
    if key is None:
        return None
    found = tx.submission.remembered(caller.project_id, key, route, since_ms=_since_ms(ctx))
    if found is None:
        return None
    request_sha256, job_id = found
    if request_sha256 != request_hash(request):
        raise IdempotencyMismatch(f"Idempotency-Key {key} was used for {job_id} with another body; use a new key")
    return job_id


def remember(
    ctx: Context,
    tx: Transaction,
    caller: Caller,
    request: Message,
    key: str,
    *,
    job_id: str,
    route: str = ROUTE,
) -> str:
    """Store that the request with this key makes this job, and return the job; that of an equal request which was
    committed a moment ago. Raises KeyInFlight while another request with the key is being answered.
    """
    stored = tx.submission.remember(
        caller.project_id,
        key,
        route,
        request_sha256=request_hash(request),
        job_id=job_id,
        at_ms=ctx.clock.now_ms(),
        since_ms=_since_ms(ctx),
    )
    earlier = job_id if stored else remembered(ctx, tx, caller, request, key, route=route)
    if earlier is None:
        raise KeyInFlight(f"another request with Idempotency-Key {key} is just being answered")
    return earlier


def _since_ms(ctx: Context) -> int:
    return ctx.clock.now_ms() - round(ctx.policy.idempotency_kept_s * 1000)
