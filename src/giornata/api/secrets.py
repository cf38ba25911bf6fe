"""Routes of projects' secrets."""

from typing import Annotated

from fastapi import APIRouter, Path

from giornata.api.callers import Ctx, User
from giornata.api.openapi import USER, USER_ITEM, refusals
from giornata.control import keep_secrets
from giornata.protocol.secrets import NAME_PATTERN, Secret, SecretPage, SetSecret
from giornata.protocol.strict_json import Json

router = APIRouter(prefix="/v1/secrets", tags=["administration"])

Name = Annotated[str, Path(max_length=64, pattern=NAME_PATTERN)]


@router.put("/{name}", responses=refusals(401, 403))
def set_secret(ctx: Ctx, caller: User, name: Name, body: Json[SetSecret]) -> Secret:
    """Keep a value, encrypted. It cannot be read back; jobs name it in `hub_token_secret` or the like."""
    return keep_secrets.set_secret(ctx, caller, name, body)


@router.get("", responses=USER)
def list_secrets(ctx: Ctx, caller: User) -> SecretPage:
    """The project's secrets, without their values."""
    return keep_secrets.list_secrets(ctx, caller)


@router.delete("/{name}", responses=USER_ITEM)
def delete_secret(ctx: Ctx, caller: User, name: Name) -> Secret:
    """Forget a value. Jobs that name it can no longer use it."""
    return keep_secrets.delete_secret(ctx, caller, name)
