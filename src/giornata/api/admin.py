"""Routes of projects, keys and nodes."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response, status

from giornata.api.callers import Ctx, ReadLists, User, Wake
from giornata.api.openapi import USER, USER_ITEM, refusals
from giornata.api.paging import Cursor, Limit
from giornata.control import keys, nodes, projects
from giornata.control import set_budget as budgeting
from giornata.protocol.admin import (
    CreatedKey,
    CreateKey,
    CreateProject,
    Key,
    KeyPage,
    NodePage,
    Project,
    ProjectPage,
    SetBudget,
    SetLimits,
)
from giornata.protocol.strict_json import Json

router = APIRouter(prefix="/v1", tags=["administration"])


@router.get("/nodes", responses=USER, response_model=NodePage)
async def list_nodes(
    *,
    ctx: Ctx,
    lists: ReadLists,
    caller: User,
    gone: Annotated[bool, Query(description="Also those that left long ago.")] = False,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    """The nodes that the caller may see, with what they hold."""
    return await lists.page(nodes.list_nodes, ctx, caller, gone=gone, cursor=cursor, limit=limit)


@router.post("/projects", status_code=status.HTTP_201_CREATED, responses=refusals(401, 403, 409))
def create_project(ctx: Ctx, caller: User, body: Json[CreateProject]) -> Project:
    """A new tenant."""
    return projects.create_project(ctx, caller, body)


@router.get("/projects", responses=USER, response_model=ProjectPage)
async def list_projects(
    ctx: Ctx, lists: ReadLists, caller: User, cursor: Cursor = None, limit: Limit = 100
) -> Response:
    """All projects for a root admin, else the caller's own."""
    return await lists.page(projects.list_projects, ctx, caller, cursor, limit)


@router.put("/projects/{project_id}/budget", responses=USER_ITEM)
def set_budget(
    ctx: Ctx, caller: User, wakeup: Wake, project_id: Annotated[str, Path(max_length=64)], body: Json[SetBudget]
) -> Project:
    """What all jobs of the project may cost. Jobs that waited for the money go on."""
    project = budgeting.set_project_budget(ctx, caller, project_id, body)
    wakeup.notify()
    return project


@router.put("/projects/{project_id}/limits", responses=USER_ITEM)
def set_limits(
    ctx: Ctx, caller: User, project_id: Annotated[str, Path(max_length=64)], body: Json[SetLimits]
) -> Project:
    """How many pictures a dataset of the project may have."""
    return projects.set_project_limits(ctx, caller, project_id, body)


@router.post("/keys", status_code=status.HTTP_201_CREATED, responses=USER_ITEM)
def create_key(ctx: Ctx, caller: User, body: Json[CreateKey]) -> CreatedKey:
    """A new key. Its secret is shown this once."""
    return keys.create_key(ctx, caller, body)


@router.get("/keys", responses=USER, response_model=KeyPage)
async def list_keys(ctx: Ctx, lists: ReadLists, caller: User, cursor: Cursor = None, limit: Limit = 100) -> Response:
    """The project's keys, without their secrets."""
    return await lists.page(keys.list_keys, ctx, caller, cursor, limit)


@router.delete("/keys/{key_id}", responses=USER_ITEM)
def revoke_key(ctx: Ctx, caller: User, key_id: Annotated[str, Path(max_length=64)]) -> Key:
    """The key is refused from now on. Repeating it changes nothing."""
    return keys.revoke_key(ctx, caller, key_id)
