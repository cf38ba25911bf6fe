"""Routes of sweeps: training jobs that differ in some fields, under one budget."""

from fastapi import APIRouter, Response, status

from giornata.api.job_routes.jobs import IdempotencyKey
from giornata.api.replies.openapi import USER_ITEM, refusals
from giornata.api.requests.callers import Ctx, User, Wake
from giornata.api.requests.lists import JobId
from giornata.control.jobs.reading import read_sweep
from giornata.control.jobs.submission import submit_sweep
from giornata.protocol.strict_json import Json
from giornata.protocol.sweeps import SubmitSweep, Sweep

router = APIRouter(prefix="/v1/sweeps", tags=["jobs"])


@router.post(
    "",
    status_code=status.HTTP_201_CREATED,
    responses=refusals(401, 402, 403, 409, 422)
    | {200: {"model": Sweep, "description": "This key made this sweep before."}},
)
def create_sweep(
    *,
    ctx: Ctx,
    caller: User,
    wakeup: Wake,
    response: Response,
    body: Json[SubmitSweep],
    idempotency_key: IdempotencyKey = None,
) -> Sweep:
    """Submit training jobs that differ in some fields of one spec. All are checked before any is made.

    The sweep is a job, too: cancel it, or set its budget, as of any other.
    """
    job_id, created = submit_sweep.submit_sweep(ctx, caller, body, idempotency_key)
    wakeup.notify()
    response.status_code = status.HTTP_201_CREATED if created else status.HTTP_200_OK
    response.headers["Location"] = f"{router.prefix}/{job_id}"
    return read_sweep.read_sweep(ctx, caller, job_id)


@router.get("/{job_id}", responses=USER_ITEM)
def get_sweep(ctx: Ctx, caller: User, job_id: JobId) -> Sweep:
    """Return a sweep with each of its jobs: changed fields, state, loss and cost."""
    return read_sweep.get_sweep(ctx, caller, job_id)
