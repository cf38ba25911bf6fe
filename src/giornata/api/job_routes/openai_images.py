"""`POST /v1/images/generations` in OpenAI's shape: the request, the reply and every error of the route."""

import base64
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from giornata.api.job_routes.generations import place_order
from giornata.api.replies.openai_errors import REFUSALS, error_reply
from giornata.api.replies.problems import log_defect
from giornata.api.requests.callers import Ctx, Settings, User, Wake
from giornata.api.requests.open_connections import counted
from giornata.api.requests.waiting import wait_until_ended
from giornata.api.requests.whole_refusals import ReadSubmission, all_faults
from giornata.control.caller import Caller
from giornata.control.context import Context
from giornata.control.jobs import stop_job
from giornata.control.jobs.reading import order_pictures
from giornata.control.jobs.submission import submit
from giornata.domain.errors import Conflict, Fault, GiornataError, IllegalTransition, InvalidInput, Unavailable
from giornata.domain.jobs.job import TERMINAL, JobState
from giornata.protocol.generation.request_fields import spec_fields
from giornata.protocol.generation.specs import GENERATE_KIND
from giornata.protocol.jobs import Job, SubmitJob
from giornata.protocol.orders.openai_images import (
    FIELDS_OF,
    PARAMETERS,
    ImageData,
    ImageGenerationReply,
    ImageGenerationRequest,
    ResponseFormat,
)
from giornata.protocol.orders.order_pictures import OrderPicture
from giornata.protocol.strict_json import Json

BLOCKED = "blocked"
UNREAD = "unread"


class OpenAiRoute(APIRoute):
    """A route whose errors have OpenAI's shape. Clients of that API retry 5xx; here the error says if that helps."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler, with its errors turned into replies."""
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError as error:
                return await _refusal(request, error)
            except HTTPException as error:  # the framework could not read the body
                return error_reply(InvalidInput([Fault(where="body", message=str(error.detail))]))
            except GiornataError as error:
                log_defect(request, error)
                return error_reply(error)

        return handled


async def _refusal(request: Request, error: RequestValidationError) -> Response:
    try:
        return error_reply(InvalidInput(await all_faults(request, error, _readable)))
    except GiornataError as refusal:
        return error_reply(refusal)


def _readable(body: Mapping[str, Any], unread: frozenset[str]) -> ReadSubmission:
    """Return the order of what could be read. Faults of what stands for the prompt and the model are at places that
    have faults already."""
    read = ImageGenerationRequest.model_validate({"prompt": UNREAD, "model": UNREAD, **body})
    fields = spec_fields(read.fields())
    return ReadSubmission(
        request=SubmitJob(kind=GENERATE_KIND, spec=fields.spec, labels=read.labels()),
        in_words=lambda faults: _as_parameters(fields.in_words_of_request(faults)),
        faults=fields.faults,
        unread=frozenset(name for parameter in unread for name in FIELDS_OF.get(parameter, ())),
    )


router = APIRouter(prefix="/v1/images", tags=["pictures"], route_class=OpenAiRoute)


@router.post("/generations", responses=REFUSALS, response_model_exclude_none=True)
async def create_images(
    *,
    request: Request,
    ctx: Ctx,
    caller: User,
    settings: Settings,
    wakeup: Wake,
    body: Json[ImageGenerationRequest],
) -> ImageGenerationReply:
    """Draw pictures, and reply when all are done, in the format of OpenAI's API.

    When the client leaves, or the pictures take too long, the order is canceled.
    """
    fields = spec_fields(body.fields())
    asked = SubmitJob(kind=GENERATE_KIND, spec=fields.spec, labels=body.labels())
    with counted(request.app.state, request.app.state.waiting_orders, caller):
        try:
            job = await place_order(request, submit.JobRequest(caller=caller, request=asked), fields)
        except InvalidInput as error:
            raise InvalidInput(_as_parameters(error.faults)) from None
        wakeup.notify()
        state = await wait_until_ended(
            request, partial(order_pictures.read_state, ctx, caller, job.id), wait_s=settings.images_wait_s
        )
    if state not in TERMINAL:
        await wakeup.look(_give_up, ctx, caller, job.id)
        hint = "POST /v1/generations places an order that goes on"
        raise Unavailable(f"order {job.id} is {state} after {settings.images_wait_s:g} s and was canceled; {hint}")
    return await wakeup.look(_reply, ctx, caller, job, body)


def _give_up(ctx: Context, caller: Caller, job_id: str) -> None:
    try:
        stop_job.cancel(ctx, caller, job_id)
    except IllegalTransition:
        return  # it ended meanwhile


def _reply(ctx: Context, caller: Caller, job: Job, body: ImageGenerationRequest) -> ImageGenerationReply:
    page = order_pictures.read_pictures(ctx, caller, job.id, after=-1, limit=order_pictures.GENERATION_PAGE)
    drawn = [picture for picture in page.items if picture.request is not None]
    if not drawn:
        raise _nothing_drawn(ctx, caller, job.id, page.items)
    if body.response_format is ResponseFormat.B64_JSON:
        found = order_pictures.picture_bytes(ctx, caller, job.id)
        data = [_data(body, picture, b64_json=base64.b64encode(file).decode()) for picture, file in found]
    else:
        data = [_data(body, picture, url=picture.request.url) for picture in drawn if picture.request is not None]
    return ImageGenerationReply(
        created=int(job.created_at.timestamp()),
        data=tuple(data),
        output_format=job.spec["image_format"],
        size=f"{job.spec['width']}x{job.spec['height']}",
    )


def _data(body: ImageGenerationRequest, picture: OrderPicture, **content: str) -> ImageData:
    revised = picture.prompt if picture.prompt != body.prompt else None
    return ImageData(revised_prompt=revised, **content)


def _nothing_drawn(ctx: Context, caller: Caller, job_id: str, pictures: Sequence[OrderPicture]) -> GiornataError:
    if any(BLOCKED in picture.flags for picture in pictures):
        return InvalidInput([Fault(where="prompt", message="the safety checker blocked every picture")])
    state = order_pictures.read_state(ctx, caller, job_id)
    errors = {picture.error for picture in pictures if picture.error}
    why = "; ".join(sorted(errors)) or f"order {job_id} is {JobState(state)}"
    return Conflict(f"no picture could be drawn: {why}")


def _as_parameters(faults: Sequence[Fault]) -> list[Fault]:
    # One parameter may stand for two fields, which then have one fault.
    return list(dict.fromkeys(replace(fault, where=PARAMETERS.get(fault.where, fault.where)) for fault in faults))
