"""Routes of jobs: submit, read, end."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response, status

from giornata.api.callers import Ctx, User, Wake
from giornata.api.openapi import USER, USER_CHANGE, USER_ITEM, refusals
from giornata.api.paging import Cursor, JobId, Limit
from giornata.control import cancel as canceling
from giornata.control import continue_training as continuing
from giornata.control import estimate as estimating
from giornata.control import read_jobs
from giornata.control import retry as retrying
from giornata.control import set_budget as budgeting
from giornata.control import submit as submitting
from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.job import JobState
from giornata.protocol.jobs import ChangeJob, ContinueJob, Estimate, Job, JobPage, SubmitJob

router = APIRouter(prefix="/v1", tags=["jobs"])

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=255,
        pattern=r"^[\x21-\x7e]+$",
        description="Repeating a request with the same key and body gives the same job, for 24 hours.",
    ),
]


@router.post(
    "/jobs",
    status_code=status.HTTP_201_CREATED,
    responses=refusals(401, 402, 403, 409, 422)
    | {200: {"model": Job, "description": "This key made this job before."}},
)
async def submit(
    *,
    request: Request,
    caller: User,
    wakeup: Wake,
    response: Response,
    body: SubmitJob,
    idempotency_key: IdempotencyKey = None,
) -> Job:
    """Ask for a job. The spec is checked whole before anything is stored."""
    asked = submitting.Submission(caller=caller, request=body, idempotency_key=idempotency_key)
    answer: submitting.Submitted = await request.app.state.submissions.ask(asked)
    job, created = answer
    wakeup.notify()
    response.status_code = status.HTTP_201_CREATED if created else status.HTTP_200_OK
    response.headers["Location"] = job.urls.self
    return job


@router.post("/jobs:estimate", responses=USER)
def estimate(ctx: Ctx, caller: User, body: SubmitJob) -> Estimate:
    """What submitting this would do and cost, without doing it."""
    return estimating.estimate(ctx, caller, body)


@router.get("/jobs", responses=USER)
def list_jobs(
    *,
    ctx: Ctx,
    caller: User,
    state: Annotated[list[str] | None, Query(max_length=32, description="Repeated, or a comma list.")] = None,
    label: Annotated[list[str] | None, Query(max_length=32, description="`key:value`; all must match.")] = None,
    kind: Annotated[str | None, Query(max_length=32)] = None,
    match: Annotated[
        str | None, Query(min_length=1, max_length=128, description="A job's name, or the beginning of its id.")
    ] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> JobPage:
    """Newest first, without their attempts."""
    states, labels = wanted(state or (), label or ())
    return read_jobs.list_jobs(
        ctx, caller, states=states, labels=labels, kind=kind, match=match, cursor=cursor, limit=limit
    )


@router.get("/jobs/{job_id}", responses=USER_ITEM)
def get_job(ctx: Ctx, caller: User, job_id: JobId) -> Job:
    """One job with its attempts and its money."""
    return read_jobs.get_job(ctx, caller, job_id)


@router.patch("/jobs/{job_id}", responses=refusals(401, 402, 403, 404, 409))
def change_job(ctx: Ctx, caller: User, wakeup: Wake, job_id: JobId, body: ChangeJob) -> Job:
    """Set the budget. A job that was paused for want of it is in the queue again."""
    job = budgeting.change_job(ctx, caller, job_id, body)
    wakeup.notify()
    return job


@router.post("/jobs/{job_id}/cancel", responses=USER_CHANGE)
def cancel(ctx: Ctx, caller: User, job_id: JobId) -> Job:
    """End the job. Repeating it changes nothing; a job that has ended otherwise is a 409."""
    return canceling.cancel(ctx, caller, job_id)


@router.post(
    "/jobs/{job_id}/retry",
    status_code=status.HTTP_201_CREATED,
    responses=refusals(401, 402, 403, 404, 409)
    | {200: {"model": Job, "description": "The job itself, which is queued: every machine may have it now."}},
)
def retry(ctx: Ctx, caller: User, wakeup: Wake, response: Response, job_id: JobId) -> Job:
    """A new job with the same spec and seed, which goes on from the last committed checkpoint.

    A job that is queued stays itself, and may go back at once to machines that failed it.
    """
    job = retrying.retry(ctx, caller, job_id)
    wakeup.notify()
    if job.id == job_id:
        response.status_code = status.HTTP_200_OK
    response.headers["Location"] = job.urls.self
    return job


@router.post(
    "/jobs/{job_id}/continue",
    status_code=status.HTTP_201_CREATED,
    responses=refusals(401, 402, 403, 404, 409, 422)
    | {200: {"model": Job, "description": "This key made this job before."}},
)
def continue_job(
    *,
    ctx: Ctx,
    caller: User,
    wakeup: Wake,
    response: Response,
    job_id: JobId,
    body: ContinueJob,
    idempotency_key: IdempotencyKey = None,
) -> Job:
    """A new job that starts from the weights of one that has ended, with a fresh optimizer."""
    job, created = continuing.continue_training(ctx, caller, job_id, body, idempotency_key)
    wakeup.notify()
    response.status_code = status.HTTP_201_CREATED if created else status.HTTP_200_OK
    response.headers["Location"] = job.urls.self
    return job


def wanted(states: Sequence[str], labels: Sequence[str]) -> tuple[tuple[JobState, ...], dict[str, str]]:
    """The filters as typed values. Raises InvalidInput with every fault."""
    names = [name.strip() for item in states for name in item.split(",") if name.strip()]
    known = [state.value for state in JobState]
    hint = f"use {', '.join(known)}"
    faults = [
        Fault(where="query.state", message=f"{name[:40]!r} is not a state", hint=hint)
        for name in names
        if name not in known
    ]
    pairs = [label.partition(":") for label in labels]
    faults += [
        Fault(where="query.label", message=f"{key[:40]!r} is not a label", hint="use key:value")
        for key, colon, _ in pairs
        if not (key and colon)
    ]
    if faults:
        raise InvalidInput(faults)
    return tuple(JobState(name) for name in names), {key: value for key, _, value in pairs}
