"""Routes of the registry of model files."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from giornata.api.replies.openapi import USER, USER_ITEM
from giornata.api.requests.callers import Ctx, ReadLists, User
from giornata.api.requests.lists import Cursor, Limit
from giornata.control.models import register
from giornata.control.pictures import model_coverage
from giornata.protocol.models import AddModel, ChangeModel, ModelCoverage, ModelPage, RegisteredModel
from giornata.protocol.strict_json import Json

router = APIRouter(prefix="/v1", tags=["data"])
RegisteredName = Annotated[
    str, Path(max_length=512, description="The model's name. One with a slash is percent-encoded.")
]


@router.post("/models", responses=USER)
def add_model(ctx: Ctx, caller: User, body: Json[AddModel]) -> RegisteredModel:
    """Register a model file under a name. The server first fetches a reference, which may take minutes."""
    return register.add_model(ctx, caller, body)


@router.get("/models", responses=USER, response_model=ModelPage)
async def list_models(
    ctx: Ctx, lists: ReadLists, caller: User, cursor: Cursor = None, limit: Limit = 100
) -> Response:
    """Return the project's models and those that all projects share, newest first."""
    return await lists.page(register.list_models, ctx, caller, cursor, limit)


@router.get("/models/coverage", responses=USER_ITEM)
def get_model_coverage(
    ctx: Ctx, caller: User, name: Annotated[str, Query(max_length=512, description="The model's name.")]
) -> ModelCoverage:
    """Return how many of the connected nodes hold a model, by where they hold it."""
    return model_coverage.model_coverage(ctx, caller, name)


@router.patch("/models/{name:path}", responses=USER_ITEM)
def change_model(ctx: Ctx, caller: User, name: RegisteredName, body: Json[ChangeModel]) -> RegisteredModel:
    """Pin a model, or unpin it."""
    return register.change_model(ctx, caller, name, body)


@router.delete("/models/{name:path}", responses=USER_ITEM)
def remove_model(ctx: Ctx, caller: User, name: RegisteredName) -> RegisteredModel:
    """Remove a model from the registry. Waiting orders that name it may fail."""
    return register.remove_model(ctx, caller, name)
