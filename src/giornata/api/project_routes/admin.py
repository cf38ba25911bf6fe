"""Routes of projects: their keys, limits, money and secrets, and the nodes that they see."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response, status

from giornata.api.replies.openapi import USER, USER_CHANGE, USER_ITEM, refusals
from giornata.api.requests.callers import Ctx, ReadLists, User, Wake
from giornata.api.requests.dates import Day, Instant
from giornata.api.requests.lists import Cursor, Limit
from giornata.control.access import keep_secrets, keys
from giornata.control.fleets import nodes
from giornata.control.projects import projects, read_costs, read_daily_costs
from giornata.control.projects import set_budget as budgeting
from giornata.control.text_limits import LABEL_NAME
from giornata.protocol.project.admin import (
    Costs,
    CreatedKey,
    CreateKey,
    CreateProject,
    Key,
    KeyPage,
    NodePage,
    Project,
    ProjectPage,
    RotateKey,
    SetBudget,
    SetLimits,
    SetSafety,
)
from giornata.protocol.project.daily_costs import DailyCosts
from giornata.protocol.project.secrets import NAME_PATTERN, Secret, SecretPage, SetSecret
from giornata.protocol.strict_json import Json

router = APIRouter(prefix="/v1", tags=["administration"])
SecretName = Annotated[str, Path(max_length=64, pattern=NAME_PATTERN)]


@router.get("/nodes", responses=USER, response_model=NodePage)
async def list_nodes(
    *,
    ctx: Ctx,
    lists: ReadLists,
    caller: User,
    gone: Annotated[bool, Query(description="Also nodes that left more than an hour ago.")] = False,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    """Return the nodes that the caller may see, with what they hold."""
    return await lists.page(nodes.list_nodes, ctx, caller, gone=gone, cursor=cursor, limit=limit)


@router.post("/projects", status_code=status.HTTP_201_CREATED, responses=refusals(401, 403, 409))
def create_project(ctx: Ctx, caller: User, body: Json[CreateProject]) -> Project:
    """Create a project, which is a tenant."""
    return projects.create_project(ctx, caller, body)


@router.get("/projects", responses=USER, response_model=ProjectPage)
async def list_projects(
    ctx: Ctx, lists: ReadLists, caller: User, cursor: Cursor = None, limit: Limit = 100
) -> Response:
    """Return all projects for a root admin, else the caller's own."""
    return await lists.page(projects.list_projects, ctx, caller, cursor, limit)


@router.put("/projects/{project_id}/budget", responses=USER_ITEM)
def set_budget(
    ctx: Ctx, caller: User, wakeup: Wake, project_id: Annotated[str, Path(max_length=64)], body: Json[SetBudget]
) -> Project:
    """Set or lift the budget of all jobs of the project. Paused jobs resume if the new budget allows it."""
    project = budgeting.set_project_budget(ctx, caller, project_id, body)
    wakeup.notify()
    return project


@router.put("/projects/{project_id}/limits", responses=USER_ITEM)
def set_limits(
    ctx: Ctx, caller: User, project_id: Annotated[str, Path(max_length=64)], body: Json[SetLimits]
) -> Project:
    """Set the maximum number of pictures in a dataset of the project."""
    return projects.set_project_limits(ctx, caller, project_id, body)


@router.put("/projects/{project_id}/safety", responses=USER_ITEM)
def set_safety(
    ctx: Ctx, caller: User, project_id: Annotated[str, Path(max_length=64)], body: Json[SetSafety]
) -> Project:
    """Set the project's rule for pictures that the safety checker finds unsafe."""
    return projects.set_project_safety(ctx, caller, project_id, body)


@router.post("/keys", status_code=status.HTTP_201_CREATED, responses=USER_ITEM)
def create_key(ctx: Ctx, caller: User, body: Json[CreateKey]) -> CreatedKey:
    """Create a key. Only this reply shows its secret."""
    return keys.create_key(ctx, caller, body)


@router.get("/keys", responses=USER, response_model=KeyPage)
async def list_keys(ctx: Ctx, lists: ReadLists, caller: User, cursor: Cursor = None, limit: Limit = 100) -> Response:
    """Return the project's keys, without their secrets."""
    return await lists.page(keys.list_keys, ctx, caller, cursor, limit)


@router.delete("/keys/{key_id}", responses=USER_ITEM)
def revoke_key(ctx: Ctx, caller: User, key_id: Annotated[str, Path(max_length=64)]) -> Key:
    """Revoke a key. Repeating the request changes nothing."""
    return keys.revoke_key(ctx, caller, key_id)


@router.post("/keys/{key_id}/rotate", responses=USER_CHANGE)
def rotate_key(
    ctx: Ctx, caller: User, key_id: Annotated[str, Path(max_length=64)], body: Json[RotateKey]
) -> CreatedKey:
    """Give a key a new secret, which only this reply shows. The old secret stays valid for `overlap_s`."""
    return keys.rotate_key(ctx, caller, key_id, body)


@router.get("/costs", responses=USER, response_model=Costs)
async def get_costs(
    ctx: Ctx,
    lists: ReadLists,
    caller: User,
    since: Annotated[
        Instant | None, Query(description="Start of the period (RFC 3339). Default: 30 days before `until`.")
    ] = None,
    until: Annotated[Instant | None, Query(description="End of the period (RFC 3339). Default: now.")] = None,
) -> Response:
    """Return the costs of the project's work; for a root admin of all projects, and the bills of the fleets."""
    return await lists.page(read_costs.read_costs, ctx, caller, since, until)


@router.get("/costs/days", responses=USER, response_model=DailyCosts)
async def get_daily_costs(
    *,
    ctx: Ctx,
    lists: ReadLists,
    caller: User,
    since: Annotated[Day | None, Query(description="First day. Default: 29 days before `until`.")] = None,
    until: Annotated[Day | None, Query(description="Last day. Default: today, in UTC.")] = None,
    label: Annotated[
        str | None,
        Query(pattern=f"^{LABEL_NAME.pattern}$", description="Return a line for each value of this label of jobs."),
    ] = None,
) -> Response:
    """Return what the project's work cost on each day in UTC; for a root admin the work of all projects."""
    return await lists.page(read_daily_costs.read_daily_costs, ctx, caller, since, until, label)


@router.put("/secrets/{name}", responses=refusals(401, 403))
def set_secret(ctx: Ctx, caller: User, name: SecretName, body: Json[SetSecret]) -> Secret:
    """Store a secret, encrypted. Nobody can read it back; jobs name it, for example in `hub_token_secret`."""
    return keep_secrets.set_secret(ctx, caller, name, body)


@router.get("/secrets", responses=USER)
def list_secrets(ctx: Ctx, caller: User) -> SecretPage:
    """Return the project's secrets, without their values."""
    return keep_secrets.list_secrets(ctx, caller)


@router.delete("/secrets/{name}", responses=USER_ITEM)
def delete_secret(ctx: Ctx, caller: User, name: SecretName) -> Secret:
    """Delete a secret. Jobs that name it can no longer use it."""
    return keep_secrets.delete_secret(ctx, caller, name)
