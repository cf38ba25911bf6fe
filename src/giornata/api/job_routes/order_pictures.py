"""Routes of the pictures of an order: a page, a stream, one of them."""

from enum import StrEnum
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Query, Response, status
from fastapi.responses import RedirectResponse

from giornata.api.job_routes.histories import STREAMED
from giornata.api.replies.event_stream import Following
from giornata.api.replies.openapi import USER_ITEM
from giornata.api.requests.callers import Ctx, ReadLists, User
from giornata.api.requests.lists import JobId, Limit
from giornata.control.jobs.reading import order_pictures
from giornata.control.jobs.reading.history_heads import HistoryPart
from giornata.domain.errors import NotFound
from giornata.protocol.orders.order_pictures import OrderPicture, OrderPicturePage

router = APIRouter(prefix="/v1/jobs/{job_id}/pictures", tags=["pictures"])

LARGEST_NUMBER = 2**31 - 2


class PictureOrder(StrEnum):
    """The order of a page of pictures."""

    NUMBER = "number"
    END = "end"


class PictureReply(StrEnum):
    """The form of the reply for one picture."""

    REDIRECT = "redirect"
    JSON = "json"


PictureNumber = Annotated[int, Path(ge=0, le=LARGEST_NUMBER)]


@router.get("", response_model=OrderPicturePage, responses=STREAMED)
async def list_pictures(
    *,
    ctx: Ctx,
    lists: ReadLists,
    caller: User,
    asked: Following,
    job_id: JobId,
    by: Annotated[
        PictureOrder, Query(description="`number`, or `end`: those that have ended, in the order of their ends.")
    ] = PictureOrder.NUMBER,
    after: Annotated[
        int | None,
        Query(
            ge=-1, le=LARGEST_NUMBER, description="Only pictures after this number, or with `by=end` after this id."
        ),
    ] = None,
    limit: Limit = 100,
) -> Response:
    """Return the pictures of an order, or stream each picture once when it has ended."""
    ended = partial(order_pictures.read_ended, ctx, caller, job_id)
    if asked.is_for_stream:
        return await asked.respond(HistoryPart.PICTURES, job_id, ended, after=max(0, after or 0))
    if by is PictureOrder.END:
        return await lists.page(ended, after=after or 0, limit=limit)
    start = -1 if after is None else after
    return await lists.page(order_pictures.read_pictures, ctx, caller, job_id, after=start, limit=limit)


@router.get(
    "/{number}",
    response_model=OrderPicture,
    responses=USER_ITEM | {status.HTTP_307_TEMPORARY_REDIRECT: {"description": "The file is at `Location`."}},
)
def get_picture(
    ctx: Ctx,
    caller: User,
    job_id: JobId,
    number: PictureNumber,
    answer: Annotated[
        PictureReply, Query(alias="as", description="`json`, or `redirect` to the file.")
    ] = PictureReply.JSON,
) -> OrderPicture | Response:
    """Return one picture with a URL of its file, or redirect to the file."""
    found = order_pictures.read_picture(ctx, caller, job_id, number)
    if answer is PictureReply.JSON:
        return found
    if found.request is None:
        raise NotFound(f"picture {number} of {job_id} is {found.state}, and has no file")
    return RedirectResponse(found.request.url)
