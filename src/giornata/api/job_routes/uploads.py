"""Routes of uploads and datasets."""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from giornata.api.replies.openapi import USER, USER_CHANGE, USER_ITEM
from giornata.api.requests.callers import Ctx, ReadLists, User
from giornata.api.requests.lists import Cursor, Limit, UploadId
from giornata.control.storage import datasets, uploads
from giornata.protocol.strict_json import Json
from giornata.protocol.uploads import (
    Blob,
    CompleteUpload,
    CreateDataset,
    Dataset,
    DatasetPage,
    RenewParts,
    UploadReply,
    UploadRequest,
    UploadTicket,
)

router = APIRouter(prefix="/v1", tags=["data"])


@router.post("/uploads", responses=USER)
def request_uploads(ctx: Ctx, caller: User, body: Json[UploadRequest]) -> UploadReply:
    """Return for each file that the project has it, or signed URLs to upload it."""
    return uploads.request_uploads(ctx, caller, body)


@router.post("/uploads/{upload_id}/urls", responses=USER_CHANGE)
def renew_upload(ctx: Ctx, caller: User, upload_id: UploadId, body: Json[RenewParts]) -> UploadTicket:
    """Return new URLs for an upload whose URLs have expired."""
    return uploads.renew_upload(ctx, caller, upload_id, body)


@router.post("/uploads/{upload_id}/complete", responses=USER_CHANGE)
def complete_upload(ctx: Ctx, caller: User, upload_id: UploadId, body: Json[CompleteUpload]) -> Blob:
    """Verify the bytes that were put, and complete the upload. May be repeated."""
    return uploads.complete_upload(ctx, caller, upload_id, body)


@router.post("/datasets", responses=USER)
def create_dataset(ctx: Ctx, caller: User, body: Json[CreateDataset]) -> Dataset:
    """Create a dataset of uploaded pictures, after inspecting each. The same items give the same id."""
    return datasets.create_dataset(ctx, caller, body)


@router.get("/datasets", responses=USER, response_model=DatasetPage)
async def list_datasets(
    ctx: Ctx, lists: ReadLists, caller: User, cursor: Cursor = None, limit: Limit = 50
) -> Response:
    """Return datasets, newest first, without their items."""
    return await lists.page(datasets.list_datasets, ctx, caller, cursor, limit)


@router.get("/datasets/{dataset_id}", responses=USER_ITEM, response_model=Dataset)
async def get_dataset(
    ctx: Ctx, lists: ReadLists, caller: User, dataset_id: Annotated[str, Path(max_length=64)]
) -> Response:
    """Return one dataset with its items."""
    return await lists.page(datasets.get_dataset, ctx, caller, dataset_id)
