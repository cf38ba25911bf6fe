"""The route of what was paid."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Response

from giornata.api.callers import Ctx, ReadLists, User
from giornata.api.openapi import USER
from giornata.control import read_costs as reading_costs
from giornata.protocol.admin import Costs

router = APIRouter(prefix="/v1", tags=["administration"])


@router.get("/costs", responses=USER, response_model=Costs)
async def get_costs(
    ctx: Ctx,
    lists: ReadLists,
    caller: User,
    since: Annotated[datetime | None, Query(description="RFC 3339; thirty days before `until` by default.")] = None,
    until: Annotated[datetime | None, Query(description="RFC 3339; now by default.")] = None,
) -> Response:
    """What the project's work cost; for a root admin that of all projects, and what the fleets are billed."""
    return await lists.page(reading_costs.read_costs, ctx, caller, since, until)
