"""`POST /v1/generations`: one request that orders pictures, and waits for them if it is asked to."""

from functools import partial

import anyio.to_thread
from fastapi import APIRouter, Request, Response, status

from giornata.api.job_routes.jobs import IdempotencyKey
from giornata.api.replies.openapi import refusals
from giornata.api.requests.callers import Ctx, User, Wake
from giornata.api.requests.open_connections import counted
from giornata.api.requests.submissions import submitted
from giornata.api.requests.waiting import Prefer, preferred_wait_s, wait_until_ended
from giornata.api.requests.whole_refusals import SubmissionRoute
from giornata.control.jobs.reading import order_pictures
from giornata.control.jobs.submission import submit
from giornata.control.jobs.submission.order_models import faults_beside
from giornata.domain.errors import InvalidInput, TooMany
from giornata.domain.jobs.job import TERMINAL
from giornata.protocol.generation.request_fields import SpecFields, spec_fields
from giornata.protocol.generation.specs import GENERATE_KIND
from giornata.protocol.jobs import Job, SubmitJob
from giornata.protocol.orders.order_pictures import Generation, GenerationRequest
from giornata.protocol.strict_json import Json

router = APIRouter(prefix="/v1", tags=["pictures"], route_class=SubmissionRoute)


@router.post(
    "/generations",
    responses=refusals(401, 402, 403, 409, 422)
    | {202: {"model": Generation, "description": "The order is placed, and has not ended yet."}},
)
async def create_generation(
    *,
    request: Request,
    ctx: Ctx,
    caller: User,
    wakeup: Wake,
    response: Response,
    body: Json[GenerationRequest],
    prefer: Prefer = None,
    idempotency_key: IdempotencyKey = None,
) -> Generation:
    """Order pictures. With `Prefer: wait=60` the reply has them, if they are done by then.

    Without `Prefer`, or when the time is up, the reply is 202 with the order and the pictures that are done.
    """
    fields = spec_fields(body.fields())
    given = body.model_dump(include=set(GenerationRequest.model_fields), exclude_unset=True)
    asked = SubmitJob.model_validate({**given, "kind": GENERATE_KIND, "spec": fields.spec})
    job = await place_order(
        request, submit.JobRequest(caller=caller, request=asked, idempotency_key=idempotency_key), fields
    )
    wakeup.notify()
    ended = False
    if wait_s := preferred_wait_s(prefer or ()):
        read_state = partial(order_pictures.read_state, ctx, caller, job.id)
        try:
            with counted(request.app.state, request.app.state.waiting_orders, caller):
                ended = await wait_until_ended(request, read_state, wait_s=wait_s) in TERMINAL
            response.headers["Preference-Applied"] = f"wait={wait_s}"
        except TooMany:
            pass  # a preference need not be heeded, and the order is placed
    found: Generation = await wakeup.look(order_pictures.read_generation, ctx, caller, job.id)
    response.status_code = status.HTTP_200_OK if ended else status.HTTP_202_ACCEPTED
    response.headers["Location"] = job.urls.self
    return found


async def place_order(request: Request, asked: submit.JobRequest, fields: SpecFields) -> Job:
    """Place the order, and return it. Raises what `submit` raises, with faults at the places of the request."""
    if fields.faults:
        find = partial(faults_beside, request.app.state.context, asked.caller, asked.request)
        others = await anyio.to_thread.run_sync(find)
        raise InvalidInput([*fields.faults, *fields.in_words_of_request(others)])
    try:
        job, _ = await submitted(request, asked)
    except InvalidInput as error:
        raise InvalidInput(fields.in_words_of_request(error.faults)) from None
    return job
