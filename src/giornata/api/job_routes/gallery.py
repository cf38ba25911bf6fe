"""Routes of the gallery: find pictures of all orders, mark, delete and download several at once."""

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse

from giornata.api.replies.openapi import USER, USER_CHANGE
from giornata.api.requests.callers import Ctx, ReadLists, User
from giornata.api.requests.dates import Instant
from giornata.api.requests.lists import Cursor, Limit
from giornata.control.end_of_life import delete_pictures as deletion
from giornata.control.jobs.reading import gallery
from giornata.control.jobs.reading.picture_archive import archive_pictures as archived
from giornata.protocol.orders.gallery import (
    TAG_PATTERN,
    ChosenPictures,
    DeletedPictures,
    FoundPicturePage,
    MarkedPictures,
    MarkPictures,
)
from giornata.protocol.strict_json import Json

router = APIRouter(prefix="/v1", tags=["pictures"])
ZIP = "application/zip"
Name = Annotated[str | None, Query(min_length=1, max_length=512)]
TagName = Annotated[str, Query(pattern=TAG_PATTERN)]


@router.get("/pictures", responses=USER, response_model=FoundPicturePage)
async def find_pictures(
    *,
    ctx: Ctx,
    lists: ReadLists,
    caller: User,
    match: Annotated[
        str | None,
        Query(min_length=1, max_length=256, description="Only pictures with all of these words in their prompt."),
    ] = None,
    model: Annotated[Name, Query(description="Only pictures of this base model, as the order named it.")] = None,
    lora: Annotated[
        Name, Query(description="Only pictures with this LoRA, as the order named it. JOB finds JOB@STEP, too.")
    ] = None,
    since: Annotated[
        Instant | None, Query(description="Only pictures that were ordered at or after this instant (RFC 3339).")
    ] = None,
    until: Annotated[
        Instant | None, Query(description="Only pictures that were ordered before this instant (RFC 3339).")
    ] = None,
    starred: Annotated[bool, Query(description="Only pictures with a star.")] = False,
    tag: Annotated[
        list[TagName] | None,
        Query(max_length=20, description="Only pictures with this tag. Repeated: with all of the tags."),
    ] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> object:
    """Return pictures that have files, of the newest orders first.

    A page may be empty although more pages follow: continue with `next`.
    """
    search = gallery.GallerySearch(
        match=match, model=model, lora=lora, since=since, until=until, starred=starred, tags=tag or ()
    )
    return await lists.page(gallery.find_pictures, ctx, caller, search, cursor=cursor, limit=limit)


@router.post("/pictures:mark", responses=USER_CHANGE)
def mark_pictures(ctx: Ctx, caller: User, body: Json[MarkPictures]) -> MarkedPictures:
    """Give pictures stars and tags, or remove them. May be repeated."""
    return gallery.mark_pictures(ctx, caller, body)


@router.post("/pictures:delete", responses=USER_CHANGE)
def delete_pictures(ctx: Ctx, caller: User, body: Json[ChosenPictures]) -> DeletedPictures:
    """Delete the files of pictures, with their stars and tags. Their numbers and seeds stay."""
    return deletion.delete_pictures(ctx, caller, body)


@router.post(
    "/pictures:archive",
    responses=USER_CHANGE | {200: {"content": {ZIP: {}}, "description": "The pictures in a ZIP file."}},
    response_class=StreamingResponse,
)
def archive_pictures(ctx: Ctx, caller: User, body: Json[ChosenPictures]) -> StreamingResponse:
    """Return the files of pictures as one ZIP file, streamed from storage."""
    name = {"Content-Disposition": 'attachment; filename="pictures.zip"'}
    return StreamingResponse(archived(ctx, caller, body.pictures), media_type=ZIP, headers=name)
