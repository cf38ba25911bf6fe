"""Routes of jobs: submit, read, end."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, TypeVar

from fastapi import APIRouter, Header, Query, Request, Response, status
from pydantic import Field, StringConstraints

from giornata.api.replies.openapi import USER, USER_CHANGE, USER_ITEM, refusals
from giornata.api.requests.callers import Ctx, ReadLists, User, Wake
from giornata.api.requests.lists import Cursor, JobId, Limit
from giornata.api.requests.submissions import submitted
from giornata.api.requests.whole_refusals import SubmissionRoute
from giornata.control.jobs import retry, stop_job
from giornata.control.jobs.reading import provenance, read_jobs, read_sweep
from giornata.control.jobs.submission import estimate, order_models, submit
from giornata.control.projects import set_budget
from giornata.domain.errors import Fault, InvalidInput
from giornata.domain.jobs.job import JobState
from giornata.domain.jobs.sweep import MOST_SWEPT
from giornata.protocol.jobs import ChangeJob, ContinueJob, Estimate, Job, JobPage, JobPart, SubmitJob
from giornata.protocol.provenance import ProvenanceKey
from giornata.protocol.strict_json import Json
from giornata.protocol.sweeps import Comparison

router = APIRouter(prefix="/v1", tags=["jobs"], route_class=SubmissionRoute)

E = TypeVar("E", bound=StrEnum)

# A comma list of them is good too, so that the type is text.
StateName = Annotated[str, Field(json_schema_extra={"enum": list(map(str, JobState))})]
PartName = Annotated[str, Field(json_schema_extra={"enum": list(map(str, JobPart))})]

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
async def create_job(
    *,
    request: Request,
    caller: User,
    wakeup: Wake,
    response: Response,
    body: Json[SubmitJob],
    idempotency_key: IdempotencyKey = None,
) -> Job:
    """Submit a job. The server checks the whole spec before it stores anything."""
    asked = submit.JobRequest(caller=caller, request=body, idempotency_key=idempotency_key)
    job, created = await submitted(request, asked)
    wakeup.notify()
    response.status_code = status.HTTP_201_CREATED if created else status.HTTP_200_OK
    response.headers["Location"] = job.urls.self
    return job


@router.post("/jobs:estimate", responses=USER)
def estimate_job(ctx: Ctx, caller: User, body: Json[SubmitJob]) -> Estimate:
    """Estimate what submitting this job would do and cost, without doing it."""
    parsed = order_models.bring_order_models(ctx, caller, body)
    return estimate.estimate(ctx, caller, body, parsed_spec=parsed)


@router.get("/jobs:compare", responses=USER_ITEM)
def compare_jobs(
    ctx: Ctx,
    caller: User,
    job: Annotated[
        list[Annotated[str, StringConstraints(max_length=64)]],
        Query(
            min_length=1,
            max_length=MOST_SWEPT,
            description="Id of a training job. Repeat the parameter for each job.",
        ),
    ],
) -> Comparison:
    """Return training jobs side by side, in this order: what differs in their specs, and what came of each."""
    return read_sweep.compare_jobs(ctx, caller, job)


@router.get("/jobs", responses=USER, response_model=JobPage)
async def list_jobs(
    *,
    ctx: Ctx,
    lists: ReadLists,
    caller: User,
    state: Annotated[
        list[StateName] | None,
        Query(
            max_length=32,
            description=f"Only jobs in these states. Repeated, or a comma list of {', '.join(JobState)}.",
        ),
    ] = None,
    label: Annotated[
        list[str] | None,
        Query(
            max_length=32, description="Only jobs with this label, as `key:value`. Repeated: with all of the labels."
        ),
    ] = None,
    kind: Annotated[str | None, Query(max_length=32, description="Only jobs of this kind, such as `train`.")] = None,
    match: Annotated[
        str | None,
        Query(
            min_length=1, max_length=128, description="Only jobs with this name, or whose id begins with this text."
        ),
    ] = None,
    search: Annotated[
        str | None,
        Query(
            min_length=1,
            max_length=128,
            description="Only jobs with this text in their name, in upper or lower case.",
        ),
    ] = None,
    include: Annotated[
        list[PartName] | None,
        Query(
            max_length=8,
            description="Fields that lists leave out otherwise: `spec`, `result`. Repeated, or a comma list.",
        ),
    ] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Response:
    """Return jobs, newest first, without their attempts; with `spec` and `result` only if `include` names them.

    A page of large jobs may end before its `limit`; `next` leads to the rest.
    With `search` a page looks at the names of 2000 jobs, and may be empty though others follow.
    """
    states, labels, parts = wanted(state or (), label or (), include or ())
    return await lists.page(
        read_jobs.list_jobs,
        ctx,
        caller,
        states=states,
        labels=labels,
        kind=kind,
        match=match,
        search=search,
        include=parts,
        cursor=cursor,
        limit=limit,
    )


@router.get("/provenance-key", responses=USER)
def get_provenance_key(ctx: Ctx, caller: User) -> ProvenanceKey:
    """Return the public key that verifies the records of jobs."""
    return provenance.provenance_key(ctx, caller)


@router.get("/jobs/{job_id}", responses=USER_ITEM)
def get_job(ctx: Ctx, caller: User, job_id: JobId) -> Job:
    """Return one job with its attempts and its money."""
    return read_jobs.get_job(ctx, caller, job_id)


@router.patch("/jobs/{job_id}", responses=refusals(401, 402, 403, 404, 409))
def change_job(ctx: Ctx, caller: User, wakeup: Wake, job_id: JobId, body: Json[ChangeJob]) -> Job:
    """Set the budget of a job. A job that was paused because its budget was spent returns to the queue."""
    job = set_budget.change_job(ctx, caller, job_id, body)
    wakeup.notify()
    return job


@router.post("/jobs/{job_id}/cancel", responses=USER_CHANGE)
def cancel_job(ctx: Ctx, caller: User, job_id: JobId) -> Job:
    """Cancel a job. Repeating the request changes nothing. A job that has ended otherwise gives 409."""
    return stop_job.cancel(ctx, caller, job_id)


@router.post(
    "/jobs/{job_id}/retry",
    status_code=status.HTTP_201_CREATED,
    responses=refusals(401, 402, 403, 404, 409)
    | {200: {"model": Job, "description": "The job itself, which is queued: every machine may have it now."}},
)
def retry_job(ctx: Ctx, caller: User, wakeup: Wake, response: Response, job_id: JobId) -> Job:
    """Submit a new job with the same spec and seed, which goes on from the last committed checkpoint.

    For a queued job no new job is made: machines that failed it may take it again at once.
    """
    job = retry.retry(ctx, caller, job_id)
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
    body: Json[ContinueJob],
    idempotency_key: IdempotencyKey = None,
) -> Job:
    """Submit a new job that starts from the weights of one that has ended, with a fresh optimizer."""
    job, created = retry.continue_training(ctx, caller, job_id, body, idempotency_key)
    wakeup.notify()
    response.status_code = status.HTTP_201_CREATED if created else status.HTTP_200_OK
    response.headers["Location"] = job.urls.self
    return job


def wanted(
    states: Sequence[str], labels: Sequence[str], include: Sequence[str] = ()
) -> tuple[tuple[JobState, ...], dict[str, str], frozenset[JobPart]]:
    """Return the filters as typed values. Raises InvalidInput with every fault."""
    faults: list[Fault] = []
    found_states = _each_of(JobState, states, "state", "a state", faults)
    found_parts = _each_of(JobPart, include, "include", "a part that lists leave out", faults)
    pairs = [label.partition(":") for label in labels]
    faults += [
        Fault(where="query.label", message=f"{key[:40]!r} is not a label", hint="use key:value")
        for key, colon, _ in pairs
        if not (key and colon)
    ]
    if faults:
        raise InvalidInput(faults)
    return tuple(found_states), {key: value for key, _, value in pairs}, frozenset(found_parts)


def _each_of(kind: type[E], given: Sequence[str], name: str, what: str, faults: list[Fault]) -> list[E]:
    """Return the values that are named, one by one or in comma lists; what is none is added to `faults`."""
    names = [part.strip() for item in given for part in item.split(",")]
    known = [str(value) for value in kind]
    hint = f"use {', '.join(known)}"
    faults += [
        Fault(where=f"query.{name}", message=f"{part[:40]!r} is not {what}", hint=hint)
        for part in names
        if part not in known
    ]
    return [kind(part) for part in names if part in known]
