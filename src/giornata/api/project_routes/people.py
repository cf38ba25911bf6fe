"""Routes of accounts, of members of projects, and of invitations."""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response, status

from giornata.api.replies.openapi import USER, USER_CHANGE, USER_ITEM, refusals
from giornata.api.requests.callers import Ctx, ReadLists, User
from giornata.api.requests.lists import Cursor, Limit
from giornata.control.access import invitations, members, users
from giornata.protocol.account import people
from giornata.protocol.strict_json import Json
from giornata.web.visitors import with_password

router = APIRouter(prefix="/v1", tags=["people"])
ProjectId = Annotated[str, Path(max_length=64)]
UserId = Annotated[str, Path(max_length=64)]


@router.post("/users", status_code=status.HTTP_201_CREATED, responses=refusals(401, 403, 409, 429))
async def create_user(request: Request, ctx: Ctx, caller: User, body: Json[people.CreateUser]) -> people.User:
    """Create an account for a person."""
    return await with_password(request, partial(users.create_user, ctx, caller, body))


@router.get("/users", responses=USER, response_model=people.UserPage)
async def list_users(ctx: Ctx, lists: ReadLists, caller: User, cursor: Cursor = None, limit: Limit = 100) -> Response:
    """Return all accounts, newest first."""
    return await lists.page(users.list_users, ctx, caller, cursor, limit)


@router.patch("/users/{user_id}", responses=refusals(401, 403, 404, 429))
async def change_user(
    request: Request, ctx: Ctx, caller: User, user_id: UserId, body: Json[people.ChangeUser]
) -> people.User:
    """Change an account: operator or not, another password, active or not."""
    return await with_password(request, partial(users.change_user, ctx, caller, user_id, body))


@router.get("/projects/{project_id}/members", responses=USER_ITEM, response_model=people.MemberPage)
async def list_members(ctx: Ctx, lists: ReadLists, caller: User, project_id: ProjectId) -> Response:
    """Return all members of the project, by address."""
    return await lists.page(members.list_members, ctx, caller, project_id)


@router.put("/projects/{project_id}/members/{user_id}", responses=USER_CHANGE)
def set_member(
    ctx: Ctx, caller: User, project_id: ProjectId, user_id: UserId, body: Json[people.SetMember]
) -> people.ProjectMember:
    """Give a member another role. An operator may add a person who is not a member."""
    return members.set_member(ctx, caller, project_id, user_id, body)


@router.delete("/projects/{project_id}/members/{user_id}", responses=USER_CHANGE)
def remove_member(ctx: Ctx, caller: User, project_id: ProjectId, user_id: UserId) -> people.ProjectMember:
    """Remove a member, or leave the project. The person's keys there end."""
    return members.remove_member(ctx, caller, project_id, user_id)


@router.post("/invitations", status_code=status.HTTP_201_CREATED, responses=USER_ITEM)
def create_invitation(ctx: Ctx, caller: User, body: Json[people.CreateInvitation]) -> people.CreatedInvitation:
    """Create an invitation. Only this reply shows its secret."""
    return invitations.create_invitation(ctx, caller, body)


@router.get("/invitations", responses=USER, response_model=people.InvitationPage)
async def list_invitations(
    ctx: Ctx, lists: ReadLists, caller: User, cursor: Cursor = None, limit: Limit = 100
) -> Response:
    """Return the project's invitations, newest first."""
    return await lists.page(invitations.list_invitations, ctx, caller, cursor, limit)


@router.delete("/invitations/{invitation_id}", responses=USER_ITEM)
def revoke_invitation(
    ctx: Ctx, caller: User, invitation_id: Annotated[str, Path(max_length=64)]
) -> people.ProjectInvitation:
    """Revoke an invitation: the server refuses its link. Repeating the request changes nothing."""
    return invitations.revoke_invitation(ctx, caller, invitation_id)
