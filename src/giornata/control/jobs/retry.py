"""Make new jobs from a job that has ended: a retry resumes it, a continuation starts from its weights."""

from dataclasses import replace
from typing import Any

from giornata.control.access.permissions import require_any, require_scope, require_write
from giornata.control.attempts.ending.lift_bans import lift
from giornata.control.audit_log.record import record_call
from giornata.control.budgets.budgets import budget_faults, reserve
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.jobs.reading.read_jobs import own_job, read_job
from giornata.control.jobs.submission.quota_faults import retry_faults
from giornata.control.jobs.submission.spec_faults import parse_spec
from giornata.control.jobs.submission.submit import enqueue, submit
from giornata.control.ports.store import Transaction
from giornata.control.ports.user_queries.records import JobRecord
from giornata.control.quotas.use import standing_of
from giornata.domain.accounts.audit_log import AuditVerb
from giornata.domain.errors import Fault, IllegalTransition, InvalidInput, NotFound, OverQuota
from giornata.domain.jobs.job import IMPORTED_FROM, TERMINAL, JobState
from giornata.domain.jobs.sweep import SWEEP_KIND
from giornata.protocol.jobs import ContinueJob, Job, SubmitJob
from giornata.protocol.project.admin import ROOT_PROJECT, Scope
from giornata.protocol.specs import AUDIT_KIND, TrainSpec, canonical_names, shape_key_of
from giornata.protocol.training.adapter import what_would_be_lost

CONTINUED_FROM = "continued-from"
"""The label under which the new job names the old one."""
RAISE_ITS_BUDGET = "it goes on by itself when its budget is raised: giornata budget ID AMOUNT, or the project's"
DATASET_FIELDS = ("dataset", "class_dataset")
RETRYABLE = frozenset({JobState.FAILED, JobState.CANCELED, JobState.EXPIRED})
SUSPECT_RETRYABLE = RETRYABLE | {JobState.SUCCEEDED}
"""States from which a job can be retried that an audit has put into doubt. The operator pays for the retry."""


def continue_training(
    ctx: Context, caller: Caller, job_id: str, request: ContinueJob, idempotency_key: str | None
) -> tuple[Job, bool]:
    """Queue a job that starts from the weights of an ended job's last committed checkpoint; it, and whether this
    request made it (see `submit`).

    What `request.spec` does not name is as in the old job, but the seed, which is drawn anew. The optimizer is a
    fresh one and steps count from 0. Where the old job's result is an average, the new one starts from that. Raises
    Forbidden, NotFound, IllegalTransition for a job that has not ended, and InvalidInput with every fault.
    """
    require_scope(caller, Scope.JOBS_WRITE)
    with ctx.store.read() as tx:
        old = own_job(tx, caller, job_id)
        checkpoints = tx.job_reads.checkpoints(job_id, project_id=caller.project_id, limit=1)
    if old.state not in TERMINAL:
        hint = RAISE_ITS_BUDGET if old.state == JobState.PAUSED else "wait for its end, or cancel it"
        raise IllegalTransition(f"a job that is {old.state} cannot be continued; {hint}")
    spec, faults = canonical_names(TrainSpec, request.spec)
    if old.kind != "train":
        faults.append(Fault(where="kind", message=f"{job_id} is of kind {old.kind}", hint="only train continues"))
    elif not checkpoints:
        hint = "submit it anew"
        faults.append(Fault(where="job_id", message=f"{job_id} has no checkpoint to go on from", hint=hint))
    if "init_lora" in spec:
        message = "is the old job's checkpoint here"
        faults.append(Fault(where="spec.init_lora", message=message, hint="submit a new job to start from a file"))
    if faults:
        raise InvalidInput(faults)
    composed = {**_inherited(old, request), **spec, "init_lora": checkpoints[0].sha256}
    _refuse_what_has_no_room(old, composed)
    return submit(ctx, caller, _submission(old, request, composed), idempotency_key)


def _refuse_what_has_no_room(old: JobRecord, spec: dict[str, Any]) -> None:
    """Refuse a change that a checkpoint has no room for, as the node would find out. Raises InvalidInput.

    A spec that is wrong in itself is left to `submit`, which says all of it.
    """
    (was, _), (wanted, _) = parse_spec(old.kind, old.spec), parse_spec(old.kind, spec)
    if not (isinstance(was, TrainSpec) and isinstance(wanted, TrainSpec)):
        return
    hint = "submit a new job to train something else"
    lost = what_would_be_lost(was, wanted)
    if lost:
        raise InvalidInput([Fault(where=f"spec.{field}", message=said, hint=hint) for field, said in lost])


def _inherited(old: JobRecord, request: ContinueJob) -> dict[str, Any]:
    """Another seed: with the old one the new job would look at the same noise in the same order once more. A job with
    a name of its own names its files by it."""
    anew = {"seed", "init_lora"}
    if request.name is not None or old.name == old.id:
        anew |= {"output_name"}
    return {name: value for name, value in old.spec.items() if name not in anew}


def _submission(old: JobRecord, request: ContinueJob, spec: dict[str, Any]) -> SubmitJob:
    return SubmitJob(
        kind=old.kind,
        spec=spec,
        name=request.name or (None if old.name == old.id else old.name),
        priority=old.priority if request.priority is None else request.priority,
        labels={**_own_labels(old), **request.labels, CONTINUED_FROM: old.id},
        deadline_s=request.deadline_s,
        budget_micro_usd=old.budget_micro_usd if request.budget_micro_usd is None else request.budget_micro_usd,
        min_vram_bytes=old.min_vram_bytes if request.min_vram_bytes is None else request.min_vram_bytes,
    )


def retry(ctx: Context, caller: Caller, job_id: str) -> Job:
    """Submit a new job with the same spec and seed that goes on from the old one's checkpoints.

    While a retry is queued or running, asking again gives that one. An interrupted job that is queued is itself the
    one to be tried: its bans are lifted, so that every machine may have it now. Raises Forbidden, NotFound, and
    IllegalTransition for a job that succeeded, runs, is paused, or has not begun; OverQuota, OverBudget. A job that
    succeeded and is suspect is trained again once, at no cost to its owner, from the last checkpoint that two
    machines agree on.
    """
    require_any(caller, Scope.JOBS_WRITE, Scope.GENERATE)
    with ctx.store.begin() as tx:
        require_write(caller, own_job(tx, caller, job_id).kind)
        old = tx.submission.lock(job_id, project_id=caller.project_id)
        if old is None:
            raise NotFound(f"there is no job {job_id}")
        if old.kind == SWEEP_KIND:
            raise IllegalTransition("a sweep cannot be retried; retry its jobs, or submit it anew")
        if old.kind == AUDIT_KIND:  # the platform pays for it, and decides what it pays for
            raise IllegalTransition("an audit cannot be retried; the server asks another machine by itself")
        if old.state == JobState.QUEUED and old.interrupted:
            return _without_bans(ctx, tx, caller, old)
        if old.state not in (SUSPECT_RETRYABLE if old.suspect else RETRYABLE):
            hint = f"; {RAISE_ITS_BUDGET}" if old.state == JobState.PAUSED else ""
            raise IllegalTransition(f"a job that is {old.state} cannot be retried{hint}")
        new_id = tx.submission.live_retry(job_id, project_id=caller.project_id)
        if new_id is None and old.state == JobState.SUCCEEDED:
            new_id = tx.submission.any_retry(job_id, project_id=caller.project_id)
        if new_id is None:
            hold_datasets(tx, old)
            new_id = ctx.names.new("job")
            new = _afresh(old, new_id, caller.maker, ctx.clock.now_ms())
            if new.billed_to is None:
                _require_room(tx, ctx, new)
                new = reserve(tx, ctx, new)
            enqueue(tx, new)
            tx.submission.inherit_checkpoints(source=job_id, target=new_id, project_id=caller.project_id)
            record_call(
                tx, caller, AuditVerb.JOB_RETRY, job_id, at_ms=ctx.clock.now_ms(), changes={"new_job": new_id}
            )
        return read_job(ctx, tx, caller, new_id)


def _require_room(tx: Transaction, ctx: Context, job: JobRecord) -> None:
    faults = retry_faults(tx, job, standing_of(tx, ctx, job.project_id, hold=True))
    if faults:
        raise OverQuota([*faults, *budget_faults(tx, ctx, job)])


def hold_datasets(tx: Transaction, job: JobRecord) -> None:
    """Keep the job's datasets from being deleted meanwhile. Raises InvalidInput when one is deleted already."""
    named = [(field, job.spec[field]) for field in DATASET_FIELDS if isinstance(job.spec.get(field), str)]
    gone = [each for each in named if tx.datasets.hold(each[1], project_id=job.project_id) is None]
    if job.kind == "train" and gone:
        hint = "create the dataset again, or submit a new job with another one"
        raise InvalidInput(
            [Fault(where=f"spec.{field}", message=f"{id_} was deleted", hint=hint) for field, id_ in gone]
        )


def _without_bans(ctx: Context, tx: Transaction, caller: Caller, job: JobRecord) -> Job:
    bans = tx.bans.of_job(job.id)
    if bans:
        machine_ids = [ban.machine_id for ban in bans]
        now_ms = ctx.clock.now_ms()
        lift(tx, job, machine_ids, because="the job's owner asked for another try", at_ms=now_ms)
        record_call(tx, caller, AuditVerb.JOB_RETRY, job.id, at_ms=now_ms, changes={"bans_lifted": len(bans)})
    return read_job(ctx, tx, caller, job.id)


def _own_labels(old: JobRecord) -> dict[str, str]:
    """Return the labels that go over to a new job, which itself was not imported."""
    return {name: value for name, value in old.labels.items() if name != IMPORTED_FROM}


def _afresh(old: JobRecord, job_id: str, created_by: str, now_ms: int) -> JobRecord:
    """Return the same request, with as much time and money as it was given the first time."""
    given_ms = None if old.deadline_at_ms is None else old.deadline_at_ms - old.created_at_ms
    return replace(
        old,
        id=job_id,
        name=job_id if old.name == old.id else old.name,
        state=JobState.QUEUED,
        interrupted=False,
        retry_of=old.id,
        parent_id=None,
        labels=_own_labels(old),
        created_by=created_by,
        shape_key=shape_key_of(old.kind, old.spec),  # one of long ago has none
        attempt_id=None,
        step=0,
        committed_step=0,
        phase="",
        error=None,
        faults=[],
        result={},
        created_at_ms=now_ms,
        billed_to=ROOT_PROJECT if old.suspect else old.billed_to,
        suspect=False,
        reserved_micro_usd=0 if old.suspect else old.reserved_micro_usd,
        budget_micro_usd=None if old.suspect else old.budget_micro_usd,
        started_at_ms=None,
        ended_at_ms=None,
        deadline_at_ms=None if given_ms is None else now_ms + given_ms,
    )
