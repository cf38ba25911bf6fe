"""Routes that show and set the quotas of a project."""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from giornata.api.replies.openapi import USER_ITEM
from giornata.api.requests.callers import Ctx, ReadLists, User, Wake
from giornata.control.projects import set_quotas as quotas
from giornata.protocol.project.quotas import ProjectQuotas, SetQuotas
from giornata.protocol.strict_json import Json

router = APIRouter(prefix="/v1", tags=["administration"])
ProjectId = Annotated[str, Path(max_length=64)]


@router.get("/projects/{project_id}/quotas", responses=USER_ITEM, response_model=ProjectQuotas)
async def get_quotas(ctx: Ctx, lists: ReadLists, caller: User, project_id: ProjectId) -> Response:
    """Return the limits of the project, and what it uses of them now."""
    return await lists.page(quotas.read_quotas, ctx, caller, project_id)


@router.put("/projects/{project_id}/quotas", responses=USER_ITEM)
def set_quotas(ctx: Ctx, caller: User, wakeup: Wake, project_id: ProjectId, body: Json[SetQuotas]) -> ProjectQuotas:
    """Set or lift limits of the project. Jobs that waited for a higher limit may start."""
    found = quotas.set_quotas(ctx, caller, project_id, body)
    wakeup.notify()
    return found
