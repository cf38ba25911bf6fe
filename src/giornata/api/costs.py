"""The route of what was paid."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query

from giornata.api.callers import Ctx, User
from giornata.api.openapi import USER
from giornata.control import read_costs as reading_costs
from giornata.protocol.costs import Costs

router = APIRouter(prefix="/v1", tags=["administration"])


@router.get("/costs", responses=USER)
def read_costs(
    ctx: Ctx,
    caller: User,
    since: Annotated[datetime | None, Query(description="RFC 3339; thirty days before `until` by default.")] = None,
    until: Annotated[datetime | None, Query(description="RFC 3339; now by default.")] = None,
) -> Costs:
    """What the project's work cost; for a root admin that of all projects, and what the fleets are billed."""
    return reading_costs.read_costs(ctx, caller, since, until)
